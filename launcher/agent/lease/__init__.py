"""Who may use a host reached over SSH, or which of its GPUs: by the kernel's locks on files that all users share."""

"""The commands of `distlaunch`: one file each, with a function of its name."""

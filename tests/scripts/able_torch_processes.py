"""Processes that torch starts: a data loader's, those of torch.multiprocessing, and tensors that they share."""

import os

from able import torch_probe


class Squares:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        import torch

        return torch.full((2,), index * index)


class Workers(Squares):
    """Items that show the loader's worker that has read them."""

    def __getitem__(self, index):
        import torch

        about = torch.utils.data.get_worker_info()
        return torch.tensor([index, about.id, about.num_workers, torch.get_num_threads(), int(os.environ["RANK"])])


@torch_probe
def data_loader():
    from torch.utils.data import DataLoader

    loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    return [[batch.tolist() for batch in loader] for _ in range(2)]


@torch_probe
def data_loader_by_forkserver():
    return loaded_by("forkserver")


@torch_probe
def data_loader_by_spawn():
    return loaded_by("spawn")


def loaded_by(method):
    from torch.utils.data import DataLoader

    loader = DataLoader(Workers(), batch_size=2, num_workers=1, multiprocessing_context=method)
    return [batch.tolist() for batch in loader]


def work(index, queue, tensors):
    import torch

    for tensor in tensors:
        tensor.fill_(index + 5)
    queue.put([index, torch.get_num_threads(), os.environ["RANK"]])


@torch_probe
def spawned_by_torch():
    import torch
    import torch.multiprocessing as multiprocessing

    queue = multiprocessing.get_context("spawn").SimpleQueue()
    tensors = [torch.zeros(2).share_memory_()]
    multiprocessing.set_sharing_strategy("file_system")
    tensors.append(torch.zeros(2).share_memory_())
    multiprocessing.spawn(work, args=(queue, tensors), nprocs=1)
    failed = None
    try:
        multiprocessing.start_processes(fails, nprocs=1, start_method="fork")
    except Exception as error:
        failed = type(error).__name__, str(error).strip().splitlines()[-1]
    return [queue.get(), [tensor.tolist() for tensor in tensors], failed]


def fails(index):
    raise ValueError(f"in child {index}")


@torch_probe
def shared_tensors():
    import torch
    import torch.multiprocessing as multiprocessing

    found = []
    for strategy in ("file_descriptor", "file_system"):
        multiprocessing.set_sharing_strategy(strategy)
        tensor = torch.zeros(3).share_memory_()
        queue = multiprocessing.get_context("fork").Queue()
        taken = multiprocessing.get_context("fork").Event()
        child = multiprocessing.get_context("fork").Process(target=fill, args=(tensor, queue, taken))
        child.start()
        found.append([queue.get(timeout=60).tolist(), tensor.tolist()])
        taken.set()
        child.join()
    return found


def fill(tensor, queue, taken):
    import torch

    tensor.fill_(7)
    queue.put(torch.ones(2))
    taken.wait(60)  # the memory of the tensor is requested from this process

"""Threads, an event loop and shared memory in a worker."""

import os
import signal
import threading

from able import probe
from able_shared import square


@probe
def threads():
    from concurrent.futures import ThreadPoolExecutor

    seen = []
    threading.setprofile(None)
    thread = threading.Thread(
        target=lambda: seen.append(
            [threading.current_thread().name, threading.active_count(), len(os.listdir("/proc/self/task"))]
        )
    )
    thread.start()
    thread.join()
    with ThreadPoolExecutor(2) as pool:
        seen += list(pool.map(square, [1, 2]))
        seen.append(sorted(thread.name for thread in threading.enumerate())[:1])
    timer = threading.Timer(0.01, seen.append, ["timer"])
    timer.start()
    timer.join()
    return [
        seen,
        threading.get_native_id() == os.getpid(),
        threading.main_thread().name,
        threading.main_thread().native_id == os.getpid(),
        threading.stack_size(),
        threading.current_thread() is threading.main_thread(),
        threading.main_thread().ident == threading.get_ident(),
        threading.main_thread().daemon,
    ]


@probe
def asynchronous():
    import asyncio

    async def main():
        loop = asyncio.get_running_loop()
        received = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, received.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(received.wait(), 30)
        process = await asyncio.create_subprocess_exec("sh", "-c", "echo out; exit 3", stdout=-1)
        out, _ = await process.communicate()
        threaded = await asyncio.to_thread(square, 4)
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())
        return [out.decode(), process.returncode, threaded, (await reader.read()).decode(), type(loop).__name__]

    return asyncio.run(main())


@probe
def shared_memory():
    import mmap
    import multiprocessing
    from multiprocessing import resource_tracker, shared_memory

    block = shared_memory.SharedMemory(create=True, size=100)
    pid = os.fork()
    if not pid:
        other = shared_memory.SharedMemory(name=block.name)
        other.buf[0] = 42
        os._exit(0)
    os.waitpid(pid, 0)
    anonymous = mmap.mmap(-1, 100)
    pid = os.fork()
    if not pid:
        anonymous[0] = 43
        os._exit(0)
    os.waitpid(pid, 0)
    value = multiprocessing.Value("i", 1)
    with value.get_lock():
        value.value += 1
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=1)
        found = [
            block.buf[0],
            anonymous[0],
            value.value,
            dict(shared),
            resource_tracker._resource_tracker._pid is not None,
        ]
    block.close()
    block.unlink()
    semaphore = multiprocessing.BoundedSemaphore(2)
    return [*found, semaphore.acquire(), semaphore.get_value()]

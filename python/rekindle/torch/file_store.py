"""A store in a file: for models on the CPU.

In: storages, as `transfers` hands them over. Out: the same bytes later, in other memory.

The file has no name once it is open, so nothing is left behind however the process ends. Each
direction has a thread of its own, which works without Python's lock while bytes move.

The bytes of a store are not memory in disguise. Where the file system has direct input and output,
they go to the device through a block of 4 MiB for each direction, because tensors do not begin
where direct input and output wants memory to begin. Where it has not, they go without that block;
what was written is on the device, and out of the system's cache, when a copy is complete.

A copy holds the memory that it reads or writes until it is complete, and its room in the file. Room
is given back when nobody holds it any more. What goes wrong is raised where the copy is waited for.

Limits: Linux. A process that was forked has a file of its own, and cannot fetch what its parent has
moved.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import torch

from rekindle.errors import StoreFailed
from rekindle.torch.transfers import Event

PAGE = 4096
"""Direct input and output wants places in a file, and in memory, that are multiples of this."""
REQUEST = 4 << 20
"""Bytes that are asked for at a time. On one virtual disk smaller and larger requests were not
faster.
"""
Job = Callable[[], None]


class FileStore:
    """A file in a folder, opened when it is first needed."""

    def __init__(self, folder: str, limit: int | None = None, *, is_direct: bool = True) -> None:
        self.folder = folder
        self.limit = limit
        """The most bytes that it may hold."""
        self._is_direct = is_direct
        """Whether direct input and output is tried."""
        self._file: _File | None = None

    def place(self, size: int) -> Place:
        """Room for so many bytes."""
        if self._file is None or self._file.process != os.getpid():
            self._file = _File(self.folder, self.limit, self._is_direct)
        return self._file.place(size)

    def copy_out(self, source: torch.UntypedStorage, place: Place) -> Event:
        """Begins to write."""
        return place.file.copy_out(source, place)

    def copy_in(self, place: Place, target: torch.UntypedStorage, after: Event) -> Event:
        """Begins to read."""
        if place.file.process != os.getpid():
            raise StoreFailed(
                "a forward that ran before this process was forked has its values in the file of "
                "another process: run forward and backward in one process"
            )
        return place.file.copy_in(place, target, after)

    @property
    def held(self) -> int:
        """Bytes that are in the file."""
        return self._file.room.held if self._file is not None else 0


class Place:
    """Room in a file."""

    def __init__(self, file: _File, offset: int, size: int) -> None:
        self.file, self.offset, self.size = file, offset, size


class _Room:
    """Which parts of a file are taken. What is given back is the first to be taken again."""

    def __init__(self) -> None:
        self.end = 0
        self.free: dict[int, int] = {}
        """Offset → size of each gap before the end."""
        self.given_back: deque[tuple[int, int]] = deque()
        """Whoever gives room back may stand anywhere in the program, so nothing is locked then."""

    def take(self, size: int) -> int:
        """The offset of the lowest gap that is large enough, or of the end."""
        self._collect()
        fitting = [offset for offset, found in self.free.items() if found >= size]
        if not fitting:
            offset, self.end = self.end, self.end + size
            return offset
        offset = min(fitting)
        rest = self.free.pop(offset) - size
        if rest:
            self.free[offset + size] = rest
        return offset

    @property
    def held(self) -> int:
        """Bytes that are taken."""
        self._collect()
        return self.end - sum(self.free.values())

    def _collect(self) -> None:
        while self.given_back:
            offset, size = self.given_back.popleft()
            self.free[offset] = size
        merged: dict[int, int] = {}
        last = None
        for offset, size in sorted(self.free.items()):
            if last is not None and last + merged[last] == offset:
                merged[last] += size
            else:
                merged[offset], last = size, offset
        if last is not None and last + merged[last] == self.end:
            self.end = last
            del merged[last]
        self.free = merged


class _File:
    """An open file, and the threads that write and read it."""

    def __init__(self, folder: str, limit: int | None, is_direct: bool) -> None:
        self.process = os.getpid()
        self.limit, self.room = limit, _Room()
        self.disk = _Disk(folder, is_direct)
        self.out, self.back = _Channel("rekindle writes"), _Channel("rekindle reads")
        for channel in (self.out, self.back):
            weakref.finalize(self, channel.jobs.put, None).atexit = False
        weakref.finalize(self, os.close, self.disk.descriptor).atexit = False

    def place(self, size: int) -> Place:
        rounded = -(-size // PAGE) * PAGE
        held = self.room.held
        if self.limit is not None and held + rounded > self.limit:
            raise StoreFailed(
                f"the store in {self.disk.folder} holds {held} bytes and may hold {self.limit}, "
                f"and {size} more are to go there: an earlier forward waits for its backward; call "
                "backward after each forward, or give a larger offload_limit"
            )
        place = Place(self, self.room.take(rounded), size)
        given_back = self.room.given_back
        weakref.finalize(place, given_back.append, (place.offset, rounded)).atexit = False
        return place

    def copy_out(self, source: torch.UntypedStorage, place: Place) -> Event:
        def write() -> None:
            place.file.disk.write(place.offset, source.data_ptr(), place.size)

        return self.out.begin(write, f"write to the store's file in {self.disk.folder}")

    def copy_in(self, place: Place, target: torch.UntypedStorage, after: Event) -> Event:
        def read() -> None:
            after.wait()
            place.file.disk.read(place.offset, target.data_ptr(), place.size)

        return self.back.begin(read, f"read from the store's file in {self.disk.folder}")


class _Done:
    """The end of a copy that a thread makes."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._is_over = threading.Event()
        self._failure: str | None = None
        """In words, because an error holds what was at hand where it was raised."""

    def finish(self, failure: str | None) -> None:
        self._failure = failure
        self._is_over.set()

    def wait(self) -> None:
        self._is_over.wait()
        if self._failure is not None:
            raise StoreFailed(self._failure)


class _Channel:
    """A thread that does one job after the other. It ends when nobody can bring a job any more."""

    def __init__(self, name: str) -> None:
        self.jobs: SimpleQueue[tuple[Job, _Done] | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self.jobs,), name=name, daemon=True).start()

    def begin(self, job: Job, what: str) -> _Done:
        done = _Done(what)
        self.jobs.put((job, done))
        return done


def _work(jobs: SimpleQueue[tuple[Job, _Done] | None]) -> None:
    while True:
        entry = jobs.get()
        if entry is None:
            return
        job, done = entry
        failure = None
        try:
            job()
        except Exception as error:  # Whoever waits for it is told.
            failure = _failure(done.what, error)
        # What the job holds is let go of before anybody can have waited for it.
        del job, entry
        done.finish(failure)
        del done


class _Disk:
    """A file without a name: bytes between addresses in memory and places in it."""

    def __init__(self, folder: str, is_direct: bool) -> None:
        self.folder = folder
        try:
            self.descriptor = _open(folder)
        except OSError as error:
            what = f"make a file for the store in {folder}"
            raise StoreFailed(_failure(what, error)) from None
        self.is_direct = is_direct and _make_direct(self.descriptor)
        self.blocks = (_Block(), _Block()) if self.is_direct else None
        """For writes and for reads."""

    def write(self, offset: int, address: int, size: int) -> None:
        for at in range(0, size, REQUEST):
            count = min(REQUEST, size - at)
            if self.blocks is None:
                self._write_all(_memory(address + at, count), offset + at)
            else:
                block = self.blocks[0]
                ctypes.memmove(block.address, address + at, count)
                self._write_all(block.first(count), offset + at)
        if self.blocks is None:
            os.fdatasync(self.descriptor)
            self._drop_cached(offset, size)

    def read(self, offset: int, address: int, size: int) -> None:
        for at in range(0, size, REQUEST):
            count = min(REQUEST, size - at)
            if self.blocks is None:
                self._read_all(_memory(address + at, count), offset + at)
            else:
                block = self.blocks[1]
                self._read_all(block.first(count), offset + at)
                ctypes.memmove(address + at, block.address, count)
        if self.blocks is None:
            self._drop_cached(offset, size)

    def _write_all(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            count = os.pwrite(self.descriptor, view[done:], offset + done)
            if count == 0:
                raise OSError(errno.EIO, f"only {done} of {len(view)} bytes were written")
            done += count

    def _read_all(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            count = os.preadv(self.descriptor, [view[done:]], offset + done)
            if count == 0:
                raise OSError(errno.EIO, f"only {done} of {len(view)} bytes were read")
            done += count

    def _drop_cached(self, offset: int, size: int) -> None:
        os.posix_fadvise(self.descriptor, offset, size, os.POSIX_FADV_DONTNEED)


class _Block:
    """Memory that begins where direct input and output wants it."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, REQUEST)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def first(self, size: int) -> memoryview:
        """The first pages, so many that as many bytes lie in them."""
        return memoryview(self.memory)[: -(-size // PAGE) * PAGE]


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _open(folder: str) -> int:
    """A file in `folder` that has no name."""
    flags = os.O_RDWR | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        # Not every file system can; all of them can remove a file that is open.
        return os.open(folder, os.O_TMPFILE | flags, 0o600)
    descriptor, path = tempfile.mkstemp(prefix=".rekindle-store.", dir=folder)
    Path(path).unlink()
    return descriptor


def _make_direct(descriptor: int) -> bool:
    """Turns the system's cache off; False where that cannot be. Some take the flag and refuse the
    bytes.
    """
    import fcntl

    flags, block = fcntl.fcntl(descriptor, fcntl.F_GETFL), _Block()
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        page = block.first(PAGE)
        if os.pwrite(descriptor, page, 0) == PAGE == os.preadv(descriptor, [page], 0):
            return True
    except OSError:
        pass
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return False


ADVICE = {
    errno.ENOSPC: "make room there, or choose a folder on another disk",
    errno.EDQUOT: "make room there, or choose a folder on another disk",
    errno.EFBIG: "allow larger files, or choose a folder on another disk",
    errno.ENOENT: "choose a folder in which files can be made",
    errno.ENOTDIR: "choose a folder in which files can be made",
    errno.EACCES: "choose a folder in which files can be made",
    errno.EROFS: "choose a folder in which files can be made",
}


def _failure(what: str, error: Exception) -> str:
    """What went wrong, and what to do about it."""
    if isinstance(error, StoreFailed):
        return str(error)
    number = error.errno if isinstance(error, OSError) else None
    advice = ADVICE.get(number or 0, "check the disk, or choose a folder on another one")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return f"cannot {what}: {reason}; {advice}"

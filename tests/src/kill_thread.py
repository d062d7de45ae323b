"""Ends one thread of a process, as a bug could: the thread makes the system call `exit`."""
import ctypes, os, sys

PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 12, 13, 17, 0x4206, 0x4207
WALL = 0x40000000
pid, name = int(sys.argv[1]), sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long

def ptrace(request, thread, data=None):
    if libc.ptrace(request, thread, None, data) < 0:
        sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")

threads = [int(t) for t in os.listdir(f"/proc/{pid}/task")
           if open(f"/proc/{pid}/task/{t}/comm").read().strip() == name]
if not threads:
    sys.exit(f"no thread {name}")
thread = threads[0]
ptrace(PTRACE_SEIZE, thread)
ptrace(PTRACE_INTERRUPT, thread)
os.waitpid(thread, WALL)
# r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip ...
registers = (ctypes.c_ulonglong * 27)()
ptrace(PTRACE_GETREGS, thread, registers)
with open(f"/proc/{pid}/mem", "rb") as memory:
    memory.seek(registers[16] - 2)
    if memory.read(2) != b"\x0f\x05":
        sys.exit("the thread is not in a system call")
registers[10], registers[14], registers[15] = 60, 0, 2**64 - 1
registers[16] -= 2
ptrace(PTRACE_SETREGS, thread, registers)
ptrace(PTRACE_DETACH, thread)

//! A child process whose file calls are seen, noted and broken.
//!
//! The raft log and sled do their own input and output, so there is no seam in the program where a
//! fault could be put. `ptrace` stands between the program and the kernel instead: an ordinary user
//! may trace his own children. Each call on a file below one folder is counted; one of them can be
//! made to fail, or every call that needs space from one on. What was done to files is noted in an
//! order that promises no more than the kernel did: a write when it has returned, a sync when it
//! was asked for.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How long a life may take before it counts as standing still. It takes one to five seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// What was done to a file or folder below the traced folder, or said on standard output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deed {
    Create(PathBuf),
    Cut {
        file: PathBuf,
        length: u64,
    },
    Write {
        file: PathBuf,
        at: u64,
        bytes: Vec<u8>,
    },
    /// Of a file or a folder; it may have failed.
    Sync {
        path: PathBuf,
        failed: bool,
    },
    MakeFolder(PathBuf),
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Remove(PathBuf),
    RemoveFolder(PathBuf),
    Said(String),
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This one call fails with EIO.
    InputOutput,
    /// From this call on nothing that needs space succeeds (ENOSPC).
    Full,
}

/// What became of the child.
#[derive(Debug)]
pub(crate) struct Traced {
    /// Calls on files below the folder.
    pub(crate) calls: u64,
    /// The call that the fault struck, if it came to that.
    pub(crate) struck: Option<Struck>,
    pub(crate) deeds: Vec<Deed>,
    pub(crate) end: End,
}

/// A call that was made to fail.
#[derive(Debug, Clone)]
pub(crate) struct Struck {
    pub(crate) call: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) is_sync: bool,
    /// How much had been noted by then.
    pub(crate) at: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    /// By a signal: its own SIGABRT, or SIGKILL because it stood still.
    Killed(Signal),
}

/// A call on files that a thread is in.
struct Running {
    name: &'static str,
    /// The error it is to return, in place of being made.
    fails: Option<Errno>,
    /// What is noted when it has succeeded.
    deed: Option<Deed>,
    /// Where its sync was noted.
    sync_at: Option<usize>,
}

struct Tracer<'a> {
    root: &'a Path,
    fault: Option<(u64, Fault)>,
    calls: u64,
    struck: Option<Struck>,
    deeds: Vec<Deed>,
    running: HashMap<Pid, Option<Running>>,
}

/// Runs `command`, which waits for a line on its standard input before it touches anything, and
/// breaks call number `fault` on files below `root`.
#[allow(clippy::zombie_processes, reason = "`follow` waits for it, and for its threads")]
pub(crate) fn run(command: &mut Command, root: &Path, fault: Option<(u64, Fault)>) -> Traced {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let options =
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    let mut tracer =
        Tracer { root, fault, calls: 0, struck: None, deeds: Vec::new(), running: HashMap::new() };
    // It reads its first line in a thread of the test harness: by then there are no others to come.
    await_reader(pid);
    for thread in threads(pid) {
        ptrace::seize(thread, options).expect("an ordinary user may trace his own children");
        ptrace::interrupt(thread).unwrap();
    }
    let mut input = child.stdin.unwrap();
    std::io::Write::write_all(&mut input, b"go\n").unwrap();
    let (ended, news) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if news.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            // If it is gone by now, so much the better.
            let _gone = kill(pid, Signal::SIGKILL);
        }
    });
    let end = tracer.follow(pid);
    drop(ended);
    watchdog.join().unwrap();
    let Tracer { calls, struck, deeds, .. } = tracer;
    Traced { calls, struck, deeds, end }
}

/// Waits until a thread of `pid` reads its standard input.
fn await_reader(pid: Pid) {
    for _ in 0..10_000 {
        for thread in threads(pid) {
            let at = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall"));
            if at.is_ok_and(|at| at.starts_with("0 0x0 ")) {
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the child does not read its standard input");
}

fn threads(pid: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    names.map(|name| Pid::from_raw(name.parse().unwrap())).collect()
}

impl Tracer<'_> {
    fn follow(&mut self, child: Pid) -> End {
        // Only what this thread traces: other tests have children of their own.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let (thread, signal) = match waitpid(None, Some(flags)).unwrap() {
                WaitStatus::Exited(pid, code) if pid == child => return End::Exited(code),
                WaitStatus::Signaled(pid, signal, _) if pid == child => return End::Killed(signal),
                WaitStatus::PtraceSyscall(thread) => {
                    self.on_call(thread);
                    (thread, None)
                }
                WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
                WaitStatus::PtraceEvent(thread, _, _) => (thread, None),
                _other => continue,
            };
            // A thread that was killed meanwhile is told of by the next wait.
            match ptrace::syscall(thread, signal) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn on_call(&mut self, thread: Pid) {
        let Ok(mut regs) = ptrace::getregs(thread) else { return };
        match self.running.remove(&thread) {
            None => {
                let running = self.on_entry(thread, &mut regs);
                self.running.insert(thread, running);
            }
            Some(Some(running)) => self.on_exit(thread, &mut regs, running),
            Some(None) => {}
        }
    }

    /// A thread enters a call.
    fn on_entry(&mut self, thread: Pid, regs: &mut libc::user_regs_struct) -> Option<Running> {
        let call = Call { thread, regs: *regs };
        if let Some(said) = call.said() {
            self.deeds.push(Deed::Said(said));
            return None;
        }
        let seen = call.seen()?;
        if !seen.path.starts_with(self.root) {
            return None;
        }
        let number = self.calls;
        self.calls += 1;
        let fails = self.fault.and_then(|(at, fault)| match fault {
            Fault::InputOutput => (number == at).then_some(Errno::EIO),
            Fault::Full => (number >= at && seen.needs_space).then_some(Errno::ENOSPC),
        });
        let is_sync = matches!(seen.deed, Some(Deed::Sync { .. }));
        if fails.is_some() && self.struck.is_none() {
            let (call, path) = (seen.name, seen.path.clone());
            self.struck = Some(Struck { call, path, is_sync, at: self.deeds.len() });
        }
        let is_half = fails == Some(Errno::ENOSPC) && number.is_multiple_of(2) && call.halve(regs);
        let fails = if is_half { None } else { fails };
        if fails.is_some() {
            regs.orig_rax = u64::MAX;
        }
        if fails.is_some() || is_half {
            ptrace::setregs(thread, *regs).unwrap();
        }
        let mut running = Running { name: seen.name, fails, deed: seen.deed, sync_at: None };
        if is_sync {
            running.sync_at = Some(self.deeds.len());
            self.deeds.extend(running.deed.take());
        }
        Some(running)
    }

    /// A thread returns from a call on a file of ours.
    fn on_exit(&mut self, thread: Pid, regs: &mut libc::user_regs_struct, running: Running) {
        if let Some(error) = running.fails {
            regs.rax = (-i64::from(error as i32)) as u64;
            ptrace::setregs(thread, *regs).unwrap();
        }
        let result = regs.rax as i64;
        if result < 0 {
            if let Some(Deed::Sync { failed, .. }) =
                running.sync_at.and_then(|at| self.deeds.get_mut(at))
            {
                *failed = true;
            }
            return;
        }
        let deed = match running.deed {
            Some(Deed::Write { file, at, mut bytes }) => {
                bytes.truncate(usize::try_from(result).unwrap());
                Some(Deed::Write { file, at, bytes })
            }
            deed => deed,
        };
        assert_ne!(running.name, "fallocate", "not followed yet");
        self.deeds.extend(deed);
    }
}

/// A call as it is entered.
struct Call {
    thread: Pid,
    regs: libc::user_regs_struct,
}

/// A call on a file.
struct Seen {
    name: &'static str,
    path: PathBuf,
    deed: Option<Deed>,
    needs_space: bool,
}

impl Seen {
    fn new(name: &'static str, path: PathBuf, deed: Option<Deed>) -> Self {
        let needs_space =
            matches!(deed, Some(Deed::Create(_) | Deed::Write { .. } | Deed::MakeFolder(_)));
        Self { name, path, deed, needs_space }
    }
}

impl Call {
    /// What the child says on its standard output.
    fn said(&self) -> Option<String> {
        let is_said = self.regs.orig_rax == number(libc::SYS_write) && self.regs.rdi == 1;
        is_said.then(|| String::from_utf8(self.memory(self.regs.rsi, self.regs.rdx)).unwrap())
    }

    /// The call, if it is one on files or folders that can fail.
    fn seen(&self) -> Option<Seen> {
        let regs = &self.regs;
        let call = i64::try_from(regs.orig_rax).ok()?;
        Some(match call {
            libc::SYS_openat => self.open(self.at(regs.rdi, regs.rsi), regs.rdx)?,
            libc::SYS_open => self.open(self.at(AT_CWD, regs.rdi), regs.rsi)?,
            libc::SYS_read => Seen::new("read", self.file(regs.rdi)?, None),
            libc::SYS_pread64 => Seen::new("pread", self.file(regs.rdi)?, None),
            libc::SYS_getdents64 => Seen::new("getdents", self.file(regs.rdi)?, None),
            libc::SYS_write => {
                let bytes = self.memory(regs.rsi, regs.rdx);
                self.write("write", self.position()?, bytes)?
            }
            libc::SYS_pwrite64 => {
                let bytes = self.memory(regs.rsi, regs.rdx);
                self.write("pwrite", regs.r10, bytes)?
            }
            libc::SYS_writev => self.write("writev", self.position()?, self.vector())?,
            libc::SYS_pwritev => self.write("pwritev", regs.r10, self.vector())?,
            libc::SYS_fsync | libc::SYS_fdatasync => {
                let path = self.file(regs.rdi)?;
                let deed = Deed::Sync { path: path.clone(), failed: false };
                Seen::new("fsync", path, Some(deed))
            }
            // It asks for writing to begin and promises nothing.
            libc::SYS_sync_file_range => Seen::new("sync_file_range", self.file(regs.rdi)?, None),
            libc::SYS_ftruncate => {
                let file = self.file(regs.rdi)?;
                let deed = Deed::Cut { file: file.clone(), length: regs.rsi };
                Seen::new("ftruncate", file, Some(deed))
            }
            libc::SYS_fallocate => Seen::new("fallocate", self.file(regs.rdi)?, None),
            libc::SYS_mkdir => self.make_folder(self.at(AT_CWD, regs.rdi)?),
            libc::SYS_mkdirat => self.make_folder(self.at(regs.rdi, regs.rsi)?),
            libc::SYS_unlink => self.remove(self.at(AT_CWD, regs.rdi)?),
            libc::SYS_rmdir => self.remove_folder(self.at(AT_CWD, regs.rdi)?),
            libc::SYS_unlinkat if regs.rdx & AT_REMOVEDIR != 0 => {
                self.remove_folder(self.at(regs.rdi, regs.rsi)?)
            }
            libc::SYS_unlinkat => self.remove(self.at(regs.rdi, regs.rsi)?),
            libc::SYS_rename => self.rename((AT_CWD, regs.rdi), (AT_CWD, regs.rsi))?,
            libc::SYS_renameat | libc::SYS_renameat2 => {
                self.rename((regs.rdi, regs.rsi), (regs.rdx, regs.r10))?
            }
            libc::SYS_copy_file_range | libc::SYS_sendfile | libc::SYS_io_uring_enter => {
                panic!("a call that the tracer does not follow: {call}")
            }
            _other => return None,
        })
    }

    fn open(&self, path: Option<PathBuf>, flags: u64) -> Option<Seen> {
        let (path, flags) = (path?, flags as i32);
        let deed = match fs::symlink_metadata(&path) {
            Err(_) if flags & libc::O_CREAT != 0 => Some(Deed::Create(path.clone())),
            Ok(found) if flags & libc::O_TRUNC != 0 && found.len() > 0 => {
                Some(Deed::Cut { file: path.clone(), length: 0 })
            }
            _ => None,
        };
        Some(Seen::new("open", path, deed))
    }

    fn write(&self, name: &'static str, at: u64, bytes: Vec<u8>) -> Option<Seen> {
        let file = self.file(self.regs.rdi)?;
        let deed = Deed::Write { file: file.clone(), at, bytes };
        Some(Seen::new(name, file, Some(deed)))
    }

    fn make_folder(&self, path: PathBuf) -> Seen {
        Seen::new("mkdir", path.clone(), Some(Deed::MakeFolder(path)))
    }

    fn remove(&self, path: PathBuf) -> Seen {
        Seen::new("unlink", path.clone(), Some(Deed::Remove(path)))
    }

    fn remove_folder(&self, path: PathBuf) -> Seen {
        Seen::new("rmdir", path.clone(), Some(Deed::RemoveFolder(path)))
    }

    fn rename(&self, from: (u64, u64), to: (u64, u64)) -> Option<Seen> {
        let (from, to) = (self.at(from.0, from.1)?, self.at(to.0, to.1)?);
        let deed = Deed::Rename { from, to: to.clone() };
        Some(Seen::new("rename", to, Some(deed)))
    }

    /// Makes a write one of half its bytes, as the last one before a disk is full.
    fn halve(&self, regs: &mut libc::user_regs_struct) -> bool {
        let is_plain = [libc::SYS_write, libc::SYS_pwrite64].map(number).contains(&regs.orig_rax);
        if !is_plain || regs.rdx < 2 {
            return false;
        }
        regs.rdx /= 2;
        true
    }

    /// The file or folder that a descriptor stands for, by its name of now.
    fn file(&self, descriptor: u64) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/fd/{descriptor}", self.thread)).ok()
    }

    /// The path at `text`, seen from a folder's descriptor.
    fn at(&self, folder: u64, text: u64) -> Option<PathBuf> {
        let path = self.text(text)?;
        if path.is_absolute() {
            return Some(path);
        }
        let from = match folder as i32 {
            libc::AT_FDCWD => fs::read_link(format!("/proc/{}/cwd", self.thread)).ok()?,
            _ => self.file(folder)?,
        };
        Some(from.join(path))
    }

    /// Where the next write of a file without a place of its own goes.
    fn position(&self) -> Option<u64> {
        let about = format!("/proc/{}/fdinfo/{}", self.thread, self.regs.rdi);
        let about = fs::read_to_string(about).ok()?;
        let field = |name: &str| {
            let line = about.lines().find(|line| line.starts_with(name))?;
            Some(line[name.len()..].trim().to_owned())
        };
        let flags = i32::from_str_radix(&field("flags:")?, 8).ok()?;
        match flags & libc::O_APPEND {
            0 => field("pos:")?.parse().ok(),
            _ => Some(fs::metadata(self.file(self.regs.rdi)?).ok()?.len()),
        }
    }

    /// The bytes of a vectored write.
    fn vector(&self) -> Vec<u8> {
        let pieces = self.memory(self.regs.rsi, self.regs.rdx * 16);
        let numbers = pieces.chunks_exact(8).map(|n| u64::from_le_bytes(n.try_into().unwrap()));
        let numbers: Vec<u64> = numbers.collect();
        numbers.chunks_exact(2).flat_map(|piece| self.memory(piece[0], piece[1])).collect()
    }

    fn text(&self, at: u64) -> Option<PathBuf> {
        let memory = File::open(format!("/proc/{}/mem", self.thread)).ok()?;
        let mut text = vec![0; 4096];
        // A path may end where the memory does.
        let read = memory.read_at(&mut text, at).ok()?;
        let end = text[..read].iter().position(|byte| *byte == 0)?;
        Some(PathBuf::from(std::str::from_utf8(&text[..end]).ok()?))
    }

    fn memory(&self, at: u64, length: u64) -> Vec<u8> {
        let memory = File::open(format!("/proc/{}/mem", self.thread)).unwrap();
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

const AT_CWD: u64 = libc::AT_FDCWD as u64;
const AT_REMOVEDIR: u64 = libc::AT_REMOVEDIR as u64;

fn number(call: libc::c_long) -> u64 {
    call as u64
}

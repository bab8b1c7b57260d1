// SPDX-License-Identifier: MIT OR Apache-2.0
//! The socket at which processes ask for the counters. One thread serves all of them, and waits for
//! none: a process gets its answer as soon as it has asked.
//!
//! The files of an answer that its process has not read are in flight on the account of this
//! service's user, root, whose other processes can send no files when too many are. So the service
//! keeps its end of the connection until the answer is read or gone, and gives no more than
//! [`UNREAD`] of them to a user. A process that asks meanwhile waits, as others start beside it.

use crate::files::owned;
use anyhow::{Context, Result, bail, ensure};
use rdmamr_fence::{ANSWER, DIRECTORY, MAGIC, SOCKET, answer, index, index_in};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind};
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// The most processes that have connected and have no answer. One more ends the oldest.
const WAITING: usize = 256;
/// The file that a service locks. Others cannot open it: who may open a file may lock it.
const LOCK: &str = "/run/rdmamr/lock";
/// How long a process may have no answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// When the service looks again whether the answers have been read that keep a process waiting.
/// The library waits 10 ms.
const AGAIN: Duration = Duration::from_millis(1);
/// The most answers that the processes of a user have not read.
const UNREAD: usize = 32;
/// The most files of unread answers. A process of root without privileges can send files until as
/// many are in flight as it may open itself, 1024 by default.
const IN_FLIGHT: usize = 768;

/// The result of a system call.
fn result(value: impl Into<i64>) -> std::io::Result<i64> {
    match value.into() {
        -1 => Err(Error::last_os_error()),
        value => Ok(value),
    }
}

/// The socket, and the lock that keeps a second service away.
pub struct Service {
    listener: OwnedFd,
    /// The signals that end the service.
    signals: OwnedFd,
    _lock: File,
}

impl Drop for Service {
    fn drop(&mut self) {
        // The lock is held, so it is this service's.
        let _ = fs::remove_file(SOCKET);
    }
}

impl Service {
    pub fn open() -> Result<Service> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(DIRECTORY)
            .with_context(|| format!("{DIRECTORY} (the service needs root)"))?;
        let about = fs::symlink_metadata(DIRECTORY).context(DIRECTORY)?;
        ensure!(
            about.is_dir() && about.uid() == 0 && about.mode() & 0o022 == 0,
            "{DIRECTORY} must be a directory of root's that nobody else may write"
        );
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(LOCK)
            .with_context(|| format!("{LOCK} (the service needs root)"))?;
        if lock.try_lock().is_err() {
            bail!("another \"rdmamr fence\" serves this machine ({LOCK} is locked)");
        }
        match fs::remove_file(SOCKET) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context(SOCKET),
            _ => {}
        }
        let signals = signals()?;
        let listener = listen().context(SOCKET)?;
        Ok(Service {
            listener,
            signals,
            _lock: lock,
        })
    }

    /// Gives the files to each process that asks, until a signal ends the service.
    pub fn serve(self, files: &[&OwnedFd]) -> Result<()> {
        // Processes may connect from now on.
        fs::set_permissions(SOCKET, Permissions::from_mode(0o666)).context(SOCKET)?;
        let mut answers = Answers {
            files: files.iter().map(|file| file.as_raw_fd()).collect(),
            unread: Vec::new(),
        };
        let mut waiting: VecDeque<Waiting> = VecDeque::new();
        loop {
            let fixed = [&self.signals, &self.listener].map(AsRawFd::as_raw_fd);
            // What a process sends after its question is nothing to wake up for.
            let silent = waiting.iter().filter(|it| it.asks.is_none());
            let polled = silent.map(|it| it.connection.as_raw_fd());
            let mut polled: Vec<_> = fixed
                .into_iter()
                .chain(polled)
                .map(|fd| libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                })
                .collect();
            let timeout = if waiting.is_empty() {
                -1
            } else if waiting.iter().any(|it| it.asks.is_some()) {
                AGAIN.as_millis() as i32
            } else {
                PATIENCE.as_millis() as i32
            };
            // SAFETY: the list has as many elements.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, timeout) };
            result(ready).or_else(|error| match error.kind() {
                ErrorKind::Interrupted => Ok(0),
                _ => Err(error).context("poll"),
            })?;
            if polled[0].revents != 0 {
                return Ok(());
            }
            answers.unread.retain(Unread::is_unread);
            let served = waiting.drain(..).filter_map(|it| answers.serve(it));
            waiting = served.filter(|it| it.since.elapsed() < PATIENCE).collect();
            if polled[1].revents != 0 {
                self.accept(&mut answers, &mut waiting);
            }
        }
    }

    /// Takes the processes that have connected, and answers those that have asked.
    fn accept(&self, answers: &mut Answers, waiting: &mut VecDeque<Waiting>) {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        for _ in 0..64 {
            // SAFETY: no address is asked for.
            let accepted =
                unsafe { libc::accept4(self.listener.as_raw_fd(), null_mut(), null_mut(), flags) };
            let connection = match owned(accepted) {
                Ok(connection) => connection,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The system has no descriptor left. Others give theirs back.
                Err(_) => return std::thread::sleep(Duration::from_millis(10)),
            };
            let process = Waiting {
                connection,
                since: Instant::now(),
                asks: None,
            };
            if let Some(process) = answers.serve(process) {
                if waiting.len() == WAITING {
                    waiting.pop_front();
                }
                waiting.push_back(process);
            }
        }
    }
}

/// A file that can be read when a signal says that the service must end.
fn signals() -> Result<OwnedFd> {
    // SAFETY: all zeros is a valid set of signals.
    let mut set: libc::sigset_t = unsafe { zeroed() };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the set is valid.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: the set is valid, and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, null_mut()) };
    // SAFETY: the set is valid.
    Ok(owned(unsafe {
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC)
    })?)
}

/// The socket's address, and its length.
fn address() -> (libc::sockaddr_un, u32) {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(SOCKET.bytes()) {
        *to = from as libc::c_char;
    }
    (address, size_of_val(&address) as u32)
}

/// Why a process of this user gets no counters.
pub enum Absent {
    /// No service runs.
    NotRunning,
    /// The library refuses the service, or gets no answer.
    Refused(&'static str),
}

/// Asks the service that runs, with the library's checks (`src/cache/watch/service.rs`) and more
/// patience.
pub fn answers() -> Result<(), Absent> {
    const PATIENCE: i32 = 200;
    let about = fs::symlink_metadata(SOCKET).map_err(|_| Absent::NotRunning)?;
    if about.uid() != 0 || !about.file_type().is_socket() {
        return Err(Absent::Refused("its socket is not root's"));
    }
    let flags = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    let socket = owned(unsafe { libc::socket(libc::AF_UNIX, flags, 0) })
        .map_err(|_| Absent::Refused("no socket can be made"))?;
    let (address, length) = address();
    let at = (&raw const address).cast();
    // SAFETY: the address is valid and as long.
    result(unsafe { libc::connect(socket.as_raw_fd(), at, length) }).map_err(
        |error| match error.kind() {
            ErrorKind::ConnectionRefused => Absent::NotRunning,
            _ => Absent::Refused("it accepts no connection"),
        },
    )?;
    if peer(&socket).is_none_or(|peer| peer.uid != 0) {
        return Err(Absent::Refused("it does not run as root"));
    }
    let silent = Absent::Refused("it does not answer");
    // SAFETY: the packet has as many bytes.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            MAGIC.as_ptr().cast(),
            MAGIC.len(),
            libc::MSG_NOSIGNAL,
        )
    };
    let mut polled = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the list has one element.
    if sent != MAGIC.len() as isize || unsafe { libc::poll(&mut polled, 1, PATIENCE) } != 1 {
        return Err(silent);
    }
    let mut packet = [0u8; ANSWER + 1];
    // SAFETY: the buffer has as many bytes. Files that come along are closed.
    let read = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            packet.as_mut_ptr().cast(),
            packet.len(),
            0,
        )
    };
    match usize::try_from(read) {
        Ok(0) => Err(Absent::Refused("it refuses this process")),
        Ok(read) if packet.get(..read).and_then(index_in).is_some() => Ok(()),
        Ok(_) => Err(Absent::Refused("it is of another version")),
        Err(_) => Err(silent),
    }
}

/// The process at the other end.
fn peer(socket: &OwnedFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of_val(&peer) as u32;
    let (level, name, at) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast());
    // SAFETY: the structure is the option's, and as long.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, at, &mut length) };
    (got == 0).then_some(peer)
}

/// Makes the socket. Only root may connect yet.
fn listen() -> Result<OwnedFd> {
    let flags = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    let listener = owned(unsafe { libc::socket(libc::AF_UNIX, flags, 0) })?;
    let (address, length) = address();
    // SAFETY: the address is valid and as long.
    result(unsafe { libc::bind(listener.as_raw_fd(), (&raw const address).cast(), length) })?;
    fs::set_permissions(SOCKET, Permissions::from_mode(0o600))?;
    // SAFETY: listen takes no pointers.
    result(unsafe { libc::listen(listener.as_raw_fd(), 4096) })?;
    Ok(listener)
}

/// A process that has connected and has no answer.
struct Waiting {
    connection: OwnedFd,
    since: Instant,
    /// Who it is, when it has asked.
    asks: Option<libc::ucred>,
}

/// A connection by which an answer went, and the user who got it.
struct Unread {
    connection: OwnedFd,
    user: u32,
}

impl Unread {
    /// The end of the connection would not tell: a process can shut it down with the answer in it.
    fn is_unread(&self) -> bool {
        let mut bytes = 0i32;
        // SIOCOUTQ, by its other name: how much of what was sent has been neither read nor dropped.
        let (socket, call) = (self.connection.as_raw_fd(), libc::TIOCOUTQ);
        // SAFETY: the kernel writes one number.
        let asked = unsafe { libc::ioctl(socket, call, &raw mut bytes) };
        asked == 0 && bytes > 0
    }
}

/// What processes get, and the answers that they have not read.
struct Answers {
    files: Vec<RawFd>,
    unread: Vec<Unread>,
}

impl Answers {
    /// Reads the question of a process and answers it. Returns the process if it has not asked yet,
    /// or must wait. Answered or not, any other is done with.
    fn serve(&mut self, mut process: Waiting) -> Option<Waiting> {
        if process.asks.is_none() {
            let mut question = [0u8; MAGIC.len() + 1];
            let (socket, at) = (process.connection.as_raw_fd(), question.as_mut_ptr());
            // SAFETY: the buffer has as many bytes. Files that come along are closed, as none are
            // asked for.
            let read = unsafe { libc::recv(socket, at.cast(), question.len(), 0) };
            match result(read as i64) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(process),
                Ok(read) if question.get(..read as usize) == Some(&MAGIC) => {}
                _ => return None,
            }
            process.asks = peer(&process.connection);
        }
        // A process of a PID namespace that is not below this one's has no number here.
        let peer = process.asks.filter(|peer| peer.pid > 0)?;
        let of_user = self.unread.iter().filter(|it| it.user == peer.uid).count();
        if of_user >= UNREAD || (self.unread.len() + 1) * self.files.len() > IN_FLIGHT {
            return Some(process);
        }
        let packet = answer(index(peer.pid as u32));
        if send(process.connection.as_raw_fd(), &packet, &self.files).is_ok() {
            self.unread.push(Unread {
                connection: process.connection,
                user: peer.uid,
            });
        }
        None
    }
}

/// Sends a packet with files. If it cannot be sent at once, the process does without.
fn send(socket: RawFd, packet: &[u8], files: &[RawFd]) -> std::io::Result<i64> {
    /// A control message, with room for more files than there are.
    #[repr(C)]
    struct Files {
        header: libc::cmsghdr,
        files: [RawFd; 16],
    }
    // SAFETY: all zeros is a valid message.
    let mut control: Files = unsafe { zeroed() };
    control.files[..files.len()].copy_from_slice(files);
    control.header.cmsg_level = libc::SOL_SOCKET;
    control.header.cmsg_type = libc::SCM_RIGHTS;
    control.header.cmsg_len = offset_of!(Files, files) + size_of_val(files);
    let mut part = libc::iovec {
        iov_base: packet.as_ptr().cast_mut().cast(),
        iov_len: packet.len(),
    };
    // SAFETY: all zeros is a valid header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = control.header.cmsg_len;
    // SAFETY: the header leads to a packet and a control message, which outlive the call.
    let sent = unsafe { libc::sendmsg(socket, &header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    result(sent as i64)
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The socket at which processes ask for the counters. One thread serves all of them, waits for
//! none, and reads nothing of what they send: a connection is the question, and a process gets its
//! answer as soon as it has connected.
//!
//! A process can send files to a service that never reads them. The kernel closes them when the
//! service closes its end, in the thread that closes, and that can take as long as the process
//! wishes (SO_LINGER). So threads of their own close (`closers.rs`), and the serving thread drops no
//! connection. A connection counts for its user until it is closed.
//!
//! The files of an answer that its process has not read are in flight on the account of this
//! service's user, root, whose other processes can send no files when too many are. So the service
//! keeps its end of the connection until the answer is read or gone, and gives no more than
//! [`UNREAD`] of them to a user. A process that asks meanwhile waits, as others start beside it.

use super::closers::{Closers, Interrupter, LONG};
use crate::files::{open_at, owned};
use crate::run::wait::block;
use anyhow::{Context, Result, bail, ensure};
use rdmamr_fence::{DIRECTORY, MAGIC, SOCKET};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, accept_with, sendmsg, shutdown, socket_with,
};
use rustix::process::umask;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{ErrorKind, IoSlice};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

/// The directory of the lock, which only root may enter. Containers that share the socket's do not
/// see it: who may open a file may lock it.
const PRIVATE: &str = "/run/rdmamr-fence";
/// The file that a service locks.
const LOCK: &str = "/run/rdmamr-fence/lock";
/// How long a process may have no answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// When the service looks again whether the answers have been read, or the connections closed, that
/// keep a process waiting. The library waits 10 ms.
const AGAIN: Duration = Duration::from_millis(1);
/// The most connections of a user that are not closed. One more is closed without an answer.
const OF_USER: usize = 192;
/// The most connections that are not closed. Further processes wait in the socket's queue.
const MOST: usize = 960;
/// The most answers that the processes of a user have not read.
const UNREAD: usize = 32;
/// The most files of unread answers. A process of root without privileges can send files until as
/// many are in flight as it may open itself, 1024 by default.
const IN_FLIGHT: usize = 768;

/// The lock that keeps a second service away, and the signals that end this one.
pub struct Service {
    signals: OwnedFd,
    _lock: File,
}

impl Drop for Service {
    fn drop(&mut self) {
        // The lock is held, so it is this service's.
        let _ = fs::remove_file(SOCKET);
    }
}

/// A directory of root's that nobody else may write. It has this mode if it is made.
fn directory(path: &str, mode: u32) -> Result<File> {
    let made = DirBuilder::new().mode(mode).create(path);
    if let Err(error) = made {
        if error.kind() != ErrorKind::AlreadyExists {
            return Err(error).with_context(|| format!("{path} (the service needs root)"));
        }
    }
    let it = open_at(CWD, path, OFlags::DIRECTORY | OFlags::NOFOLLOW, 0)
        .with_context(|| format!("{path} must be a directory of root's"))?;
    let it = File::from(it);
    let about = it.metadata().context(path.to_owned())?;
    ensure!(
        about.uid() == 0 && about.mode() & 0o022 == 0,
        "{path} must be a directory of root's that nobody else may write"
    );
    Ok(it)
}

impl Service {
    pub fn open() -> Result<Service> {
        directory(DIRECTORY, 0o755)?;
        let private = directory(PRIVATE, 0o700)?;
        // systemd makes both directories with one mode.
        let mode = Permissions::from_mode(0o700);
        private.set_permissions(mode).context(PRIVATE)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW;
        let lock = open_at(&private, "lock", flags, 0o600)
            .with_context(|| format!("{LOCK} (the service needs root)"))?;
        let lock = File::from(lock);
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("another \"rdmamr fence\" serves this machine ({LOCK} is locked)");
        }
        Ok(Service {
            signals: signals()?,
            _lock: lock,
        })
    }

    /// Gives the files to each process that connects, until a signal ends the service. The listener
    /// and the connections stay open until the process ends, whose end waits for nothing in them.
    pub fn serve(self, files: &[BorrowedFd]) -> Result<()> {
        let closers = Closers::start()?;
        let interrupter = Interrupter::of_this_thread()?;
        let listener = Box::leak(Box::new(listen().context(SOCKET)?));
        let mut connections = Connections::default();
        let again = Timespec::try_from(AGAIN)?;
        loop {
            connections.forget(&closers);
            let has_room = connections.open.len() < MOST;
            let nothing = PollFlags::empty();
            let accepts = if has_room { PollFlags::IN } else { nothing };
            let mut polled = vec![
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&*listener, accepts),
            ];
            // A process that has gone needs no answer.
            let all = connections.open.iter();
            let waiting = all.filter(|it| it.state == State::Waits);
            polled.extend(waiting.map(|it| PollFd::from_borrowed_fd(it.socket, nothing)));
            let timeout = (!has_room || polled.len() > 2).then_some(&again);
            match poll(&mut polled, timeout) {
                Err(Errno::INTR) => 0,
                ready => ready.context("poll")?,
            };
            let is_ready = |it: &PollFd| !it.revents().is_empty();
            if is_ready(&polled[0]) {
                return Ok(());
            }
            interrupter.set(LONG);
            let gone = polled[2..].iter().filter(|it| is_ready(it));
            let gone: Vec<_> = gone.map(|it| it.as_fd().as_raw_fd()).collect();
            connections.end(&closers, |it| match it.state {
                State::Waits => {
                    gone.contains(&it.socket.as_raw_fd()) || it.since.elapsed() >= TIMEOUT
                }
                State::Answered => !it.is_unread(),
                State::Refused | State::Closes => false,
            });
            if is_ready(&polled[1]) {
                connections.accept(listener);
            }
            connections.answer(files);
            connections.end(&closers, |it| it.state == State::Refused);
            interrupter.set(0);
        }
    }
}

/// A file that can be read when a signal says that the service must end.
fn signals() -> Result<OwnedFd> {
    let [set, _] = block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
    // SAFETY: the set is valid.
    let file = owned(unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) });
    Ok(file?)
}

/// Why a process of this user gets no counters.
pub enum Absent {
    /// No service runs.
    NotRunning,
    /// The library refuses the service, or gets no answer.
    Refused(&'static str),
}

/// Asks the service that runs, with the library's checks (`src/cache/watch/service.rs`) and more
/// time.
pub fn answers() -> Result<(), Absent> {
    const LIMIT: Duration = Duration::from_millis(200);
    let about = fs::symlink_metadata(SOCKET).map_err(|_| Absent::NotRunning)?;
    if about.uid() != 0 || !about.file_type().is_socket() {
        return Err(Absent::Refused("its socket is not root's"));
    }
    let socket = socket().map_err(|_| Absent::Refused("no socket can be made"))?;
    // Its calls are those of any socket that sends packets.
    let socket = UnixDatagram::from(socket);
    socket.connect(SOCKET).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Absent::NotRunning,
        _ => Absent::Refused("it accepts no connection"),
    })?;
    if peer(socket.as_raw_fd()).is_none_or(|peer| peer.uid != 0) {
        return Err(Absent::Refused("it does not run as root"));
    }
    let silent = Absent::Refused("it does not answer");
    let limit = Timespec::try_from(LIMIT).ok();
    if poll(&mut [PollFd::new(&socket, PollFlags::IN)], limit.as_ref()) != Ok(1) {
        return Err(silent);
    }
    let mut packet = [0u8; MAGIC.len() + 1];
    // Files that come along are closed.
    match socket.recv(&mut packet) {
        Ok(0) => Err(Absent::Refused("it refuses this process")),
        Ok(read) if packet.get(..read) == Some(&MAGIC) => Ok(()),
        Ok(_) => Err(Absent::Refused("it is of another version")),
        Err(_) => Err(silent),
    }
}

/// A socket that sends packets.
fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The process at the other end.
fn peer(socket: RawFd) -> Option<libc::ucred> {
    // SAFETY: all zeros is a valid `ucred`.
    let mut peer: libc::ucred = unsafe { zeroed() };
    let mut length = size_of_val(&peer) as u32;
    let (level, name, at) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast());
    // SAFETY: the structure is the option's, and as long.
    let got = unsafe { libc::getsockopt(socket, level, name, at, &mut length) };
    (got == 0).then_some(peer)
}

/// Makes the socket, in the place of an old one. Any user may connect.
fn listen() -> Result<OwnedFd> {
    match fs::remove_file(SOCKET) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = socket()?;
    // The file gets the mode of the socket, less the mask, and no other thread makes files. A chmod of
    // its name could follow a link that a container has put in its place.
    umask(Mode::empty());
    fchmod(&listener, 0o666.into())?;
    net::bind(&listener, &SocketAddrUnix::new(SOCKET)?)?;
    net::listen(&listener, 4096)?;
    Ok(listener)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// For room for its answer.
    Waits,
    /// The answer has been sent.
    Answered,
    /// The process gets none.
    Refused,
    /// A closer has it.
    Closes,
}

/// A connection of a process. The closers close it.
#[derive(Clone, Copy)]
struct Connection {
    socket: BorrowedFd<'static>,
    user: u32,
    since: Instant,
    state: State,
}

impl Connection {
    /// The end of the connection would not tell: a process can shut it down with the answer in it.
    fn is_unread(&self) -> bool {
        let mut bytes = 0i32;
        // SIOCOUTQ, by its other name: how much of what was sent has been neither read nor dropped.
        // SAFETY: the kernel writes one number.
        let asked = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        asked == 0 && bytes > 0
    }
}

/// All that are not closed.
#[derive(Default)]
struct Connections {
    open: Vec<Connection>,
}

impl Connections {
    /// Forgets those that are closed.
    fn forget(&mut self, closers: &Closers) {
        while let Some(closed) = closers.closed() {
            // The first: a later one has the number anew.
            let is_it =
                |it: &Connection| it.state == State::Closes && it.socket.as_raw_fd() == closed;
            if let Some(at) = self.open.iter().position(is_it) {
                self.open.remove(at);
            }
        }
    }

    /// Gives the closers what is to end.
    fn end(&mut self, closers: &Closers, ends: impl Fn(&Connection) -> bool) {
        for it in self.open.iter_mut().filter(|it| ends(it)) {
            it.state = State::Closes;
            closers.close(it.socket.as_raw_fd());
        }
    }

    /// Takes the processes that have connected.
    fn accept(&mut self, listener: &OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        for _ in 0..64.min(MOST - self.open.len()) {
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::WOULDBLOCK) => return,
                // The system has no descriptor left. Others give theirs back.
                Err(_) => return std::thread::sleep(Duration::from_millis(10)),
            };
            // Nothing more comes in.
            let _ = shutdown(&socket, Shutdown::Read);
            // SAFETY: it stays open until a closer has it, and is not used after that.
            let socket = unsafe { BorrowedFd::borrow_raw(socket.into_raw_fd()) };
            let user = peer(socket.as_raw_fd()).map_or(u32::MAX, |peer| peer.uid);
            let of_user = self.open.iter().filter(|it| it.user == user).count();
            self.open.push(Connection {
                socket,
                user,
                since: Instant::now(),
                state: match of_user < OF_USER {
                    true => State::Waits,
                    false => State::Refused,
                },
            });
        }
    }

    /// Answers those for whose answers there is room.
    fn answer(&mut self, files: &[BorrowedFd]) {
        let mut unread: HashMap<u32, usize> = HashMap::new();
        let answered = self.open.iter().filter(|it| it.state == State::Answered);
        answered.for_each(|it| *unread.entry(it.user).or_default() += 1);
        let mut all: usize = unread.values().sum();
        for it in self.open.iter_mut().filter(|it| it.state == State::Waits) {
            let of_user = unread.entry(it.user).or_default();
            if *of_user >= UNREAD || (all + 1) * files.len() > IN_FLIGHT {
                continue;
            }
            it.state = match send(it.socket, files) {
                Ok(_) => State::Answered,
                Err(_) => State::Refused,
            };
            (*of_user, all) = (*of_user + 1, all + 1);
        }
    }
}

/// Sends the answer. If it cannot be sent at once, the process does without.
fn send(socket: BorrowedFd, files: &[BorrowedFd]) -> rustix::io::Result<usize> {
    // Room for more files than there are.
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::ScmRights(files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(&MAGIC)], &mut control, flags)
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the program again if it cannot start beside the preloaded library, or beside a module for
//! LD_AUDIT. Three kinds cannot:
//!
//! - With a module the linker lays out the threads' static storage before it has seen the libraries,
//!   so what they need must fit into `glibc.rtld.optional_static_tls`. The program gets as much more
//!   as they need, up to [`MOST`]; if that does not suffice it starts without the module.
//! - With a module the linker calls the program's own `calloc` before the program's first
//!   instruction. The sanitizers that a program contains crash there: it starts without the module.
//! - The shared runtime of AddressSanitizer ends a program in which a preloaded library comes before
//!   it. An option of its own lets the program start; a script may have replaced the launcher's.
//!
//! Valgrind starts without the module too, and so does the program under it: at the program's end
//! valgrind has the linker free what the linker has allocated, and with a module reports that as an
//! error of the program. The cache's own line about valgrind is then the only one.
//!
//! This happens before any code of the program or its libraries has run, for the children of a
//! program too, which no launcher has read. It is an execve(2) of the same file with the same
//! arguments. The larger value leaves the environment when the program has started: each thread pays
//! for it with part of its stack, and a child with small stacks could not make threads.

use super::LIBRARY;
use core::ffi::CStr;
use core::iter::successors;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use rdmamr_elf::{File, Text, read};

#[path = "../sys/valgrind.rs"]
mod valgrind;

/// The linker's own, which libraries that dlopen loads may use up.
const DEFAULT: usize = 512;
/// LeakSanitizer needs 56 KiB, ThreadSanitizer 785.
const MOST: usize = 32 << 10;

const TUNABLE: &CStr = c"glibc.rtld.optional_static_tls=";
/// The form in which this module writes the value, so that it knows it again: 16 digits follow.
const RAISED: &CStr = c"GLIBC_TUNABLES=glibc.rtld.optional_static_tls=0x";
const DIGITS: usize = 16;
/// The kind of the path by which the kernel executed the program, getauxval(3).
const AT_EXECFN: usize = 31;
const MODULE: &CStr = c"librdmamr-audit.so";
/// The option of AddressSanitizer's runtime.
const ORDER: &CStr = c"ASAN_OPTIONS=verify_asan_link_order=0";
const OPTIONS: &CStr = c"ASAN_OPTIONS=";

const MESSAGE: &[u8] = b"rdmamr: the program cannot start beside librdmamr-audit.so (a sanitizer, or thread-local \
variables of its libraries), so it starts without: functions that it looks up in libibverbs by dlsym, or binds \
with RTLD_DEEPBIND, bypass the library\n";

/// The bytes of static thread-local storage that the files so far need, without the program's own.
static NEEDED: AtomicUsize = AtomicUsize::new(0);
static HAS_PROGRAM: AtomicBool = AtomicBool::new(false);
static HAS_SANITIZER: AtomicBool = AtomicBool::new(false);
static HAS_RUNTIME: AtomicBool = AtomicBool::new(false);
static IS_VALGRIND: AtomicBool = AtomicBool::new(false);
/// The address of the linker's `__libc_stack_end`, which points to the arguments.
static STACK: AtomicUsize = AtomicUsize::new(0);

/// The linker has opened a file that the program is started with.
pub fn opened(file: &File) {
    let defines = |name| file.find(Text::of(name), |_| true);
    if !HAS_PROGRAM.swap(true, Relaxed) {
        // Not all sanitizers export a symbol of their own. AddressSanitizer serves early calls.
        let has_own = defines(c"calloc").is_some() && defines(c"pthread_create").is_some();
        HAS_SANITIZER.store(has_own && defines(c"__asan_init").is_none(), Relaxed);
        return;
    }
    if STACK.load(Relaxed) == 0 {
        STACK.store(defines(c"__libc_stack_end").unwrap_or(0), Relaxed);
        let is_valgrind = STACK.load(Relaxed) != 0 && Start::find().is_valgrind();
        IS_VALGRIND.store(is_valgrind, Relaxed);
    }
    if defines(c"__asan_init").is_some() {
        HAS_RUNTIME.store(true, Relaxed);
    }
    let own = file.static_storage();
    let needed = NEEDED.fetch_add(own, Relaxed) + own;
    let without = HAS_SANITIZER.load(Relaxed) || IS_VALGRIND.load(Relaxed);
    let has_runtime = HAS_RUNTIME.load(Relaxed);
    if STACK.load(Relaxed) != 0 && (without || needed > DEFAULT || has_runtime) {
        restart_if_needed(needed, without);
    }
}

/// The arguments, the environment and what the kernel says, as they lie on the first stack.
struct Start {
    arguments: usize,
    environment: usize,
    count: usize,
}

impl Start {
    fn find() -> Start {
        let word = size_of::<usize>();
        // SAFETY: the linker's variable, which is set before it loads the first module.
        let stack: usize = unsafe { read(STACK.load(Relaxed)) };
        // SAFETY: the number of arguments is there, and two lists that end with 0 follow.
        let arguments: usize = unsafe { read(stack) };
        let environment = stack + word * (arguments + 2);
        let mut count = 0;
        // SAFETY: as above.
        while unsafe { read::<usize>(environment + word * count) } != 0 {
            count += 1;
        }
        Start {
            arguments: stack + word,
            environment,
            count,
        }
    }

    fn entry(&self, number: usize) -> usize {
        self.environment + size_of::<usize>() * number
    }

    fn variable(&self, number: usize) -> Text {
        // SAFETY: `number` is below `count`.
        let variable = unsafe { read(self.entry(number)) };
        // SAFETY: the kernel has put the string there.
        unsafe { Text::at(variable) }
    }

    fn variables(&self) -> impl Iterator<Item = Text> {
        (0..self.count).map(|number| self.variable(number))
    }

    /// A value of getauxval(3), 0 if there is none.
    fn auxiliary(&self, kind: usize) -> usize {
        let list = self.entry(self.count + 1);
        for number in 0.. {
            // SAFETY: the pair with the kind 0 ends the list, and the loop.
            let [found, value]: [usize; 2] =
                unsafe { read(list + number * size_of::<[usize; 2]>()) };
            if found == kind || found == 0 {
                return if found == 0 { 0 } else { value };
            }
        }
        0
    }

    /// Whether the program is the one that starts a program under valgrind.
    fn is_valgrind(&self) -> bool {
        let path = self.auxiliary(AT_EXECFN);
        // SAFETY: the kernel has put the path there, if the address is not 0.
        let is = |name| ends_with(unsafe { Text::at(path) }.bytes(), name);
        path != 0 && (is(c"valgrind") || is(c"valgrind.bin"))
    }

    /// Whether a variable has a part in its value.
    fn has(&self, name: &CStr, part: &CStr) -> bool {
        let mut values = self.variables().filter_map(|text| text.after(name));
        values.any(|value| value.contains(part))
    }

    fn preloads_library(&self) -> bool {
        self.has(c"LD_PRELOAD=", c"librdmamr.so")
    }

    /// Whether the kernel was told to execute a script of that path: it is an argument of the interpreter.
    fn is_script(&self, path: usize) -> bool {
        // SAFETY: the kernel has put the path there.
        let path = unsafe { Text::at(path) };
        // The interpreter has one argument of its own at most.
        let is_it = |number| {
            // SAFETY: the list of arguments ends with 0, and the environment is behind it.
            let argument = unsafe { read(self.arguments + size_of::<usize>() * number) };
            // SAFETY: the kernel has put each argument there.
            argument != 0 && unsafe { Text::at(argument) }.is(path)
        };
        is_it(1) || is_it(2)
    }

    /// The number of the variable that this module has added.
    fn raised(&self) -> Option<usize> {
        let last = self.count.checked_sub(1)?;
        let value = self.variable(last).after(RAISED)?;
        (value.bytes().count() == DIGITS).then_some(last)
    }

    /// The value of the tunable, and whether it is one that this module may raise.
    fn optional(&self) -> (usize, bool) {
        let tunables = self
            .variables()
            .filter_map(|text| text.after(c"GLIBC_TUNABLES="));
        let last = tunables
            .flat_map(parts)
            .filter_map(|text| text.after(TUNABLE))
            .last();
        let value = last.map_or(DEFAULT, number);
        (value, last.is_none() || self.raised().is_some())
    }
}

/// The parts of a list with a colon between them, each with those behind it.
fn parts(list: Text) -> impl Iterator<Item = Text> {
    successors(Some(list), |part| part.behind(b':'))
}

/// A number as in C, up to the first byte that is no digit.
fn number(text: Text) -> usize {
    let (text, base) = match text.after(c"0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let digits = text.bytes().map_while(|byte| (byte as char).to_digit(base));
    digits.fold(0, |value: usize, digit| {
        value
            .saturating_mul(base as usize)
            .saturating_add(digit as usize)
    })
}

/// The linker has bound all files: what `restart_if_needed` added goes.
pub fn started() {
    if STACK.load(Relaxed) == 0 {
        return;
    }
    let start = Start::find();
    if let Some(last) = start.raised() {
        let entry = with_exposed_provenance_mut::<usize>(start.entry(last));
        // SAFETY: the last entry of the environment, on the stack of the only thread.
        unsafe { entry.write(0) };
    }
}

#[cold]
fn restart_if_needed(needed: usize, without: bool) {
    let start = Start::find();
    let (optional, may_raise) = start.optional();
    // Valgrind would lose sight of a program that it runs. A linker that was run by its own name (AT_BASE is 0)
    // has shifted the arguments.
    const AT_BASE: usize = 7;
    let fits = needed <= optional;
    let mut orders = HAS_RUNTIME.load(Relaxed)
        && start.preloads_library()
        && !start.has(OPTIONS, c"verify_asan_link_order=");
    let is_ready = !without && fits && !orders;
    if is_ready || valgrind::is_running() || start.auxiliary(AT_BASE) == 0 {
        return;
    }
    let raised = start.raised();
    let wanted = (needed + DEFAULT).max(optional);
    let raise = !without && may_raise && wanted <= MOST && (!fits || raised.is_some());
    let without = without || !fits && !raise;
    // Pointers to all variables and two more, and the texts of the changed ones.
    let lengths = start.variables().map(|text| text.bytes().count() + 1);
    let length: usize = lengths.sum();
    let pointers = size_of::<usize>() * (start.count + 3);
    let more = RAISED.count_bytes() + DIGITS + 1 + ORDER.count_bytes() + 1;
    let Some(memory) = system::map(pointers + length + more) else {
        return;
    };
    let mut text = Writer(memory + pointers);
    let mut list = Writer(memory);
    let mut is_changed = raise || orders;
    for (number, variable) in start.variables().enumerate() {
        if raised == Some(number) {
            continue;
        }
        if orders && variable.after(OPTIONS).is_some() {
            orders = false;
            list.word(text.0);
            text.bytes(variable.bytes());
            text.bytes([b':']);
            text.bytes(Text::of(ORDER).bytes().skip(OPTIONS.count_bytes()));
            text.bytes([0]);
            continue;
        }
        let Some(modules) = variable.after(c"LD_AUDIT=").filter(|_| without) else {
            list.word(variable.address());
            continue;
        };
        let begun = text.0;
        text.bytes(b"LD_AUDIT=".iter().copied());
        let empty = text.0;
        for module in parts(modules) {
            let name = || module.bytes().take_while(|&byte| byte != b':');
            if ends_with(name(), MODULE) {
                is_changed = true;
                continue;
            }
            if text.0 != empty {
                text.bytes([b':']);
            }
            text.bytes(name());
        }
        if text.0 != empty {
            list.word(begun);
        }
        text.bytes([0]);
    }
    if orders {
        list.word(Text::of(ORDER).address());
    }
    if raise {
        list.word(text.0);
        text.bytes(RAISED.to_bytes().iter().copied());
        let digit = |place| b"0123456789abcdef"[wanted >> (4 * place) & 15];
        text.bytes((0..DIGITS).rev().map(digit));
    }
    if !is_changed {
        return;
    }
    let quiet = Text::of(c"RDMAMR_LOG=error");
    let is_quiet = start.variables().any(|text| text.is(quiet));
    // Without the library nothing bypasses it. It may not be loaded yet.
    let is_used = LIBRARY.load(Relaxed) != 0 || start.preloads_library();
    if without && !is_quiet && is_used && !IS_VALGRIND.load(Relaxed) {
        system::write_error(MESSAGE);
    }
    // The kernel names the process after the path. A script's path is not that of its interpreter.
    let this = Text::of(c"/proc/self/exe");
    let called = start.auxiliary(AT_EXECFN);
    let is_program = called != 0
        && match system::file(this.address()) {
            Some(file) => system::file(called) == Some(file),
            None => !start.is_script(called),
        };
    let path = match is_program {
        true => called,
        false => this.address(),
    };
    // If the kernel refuses, the linker goes on, and says what it lacks.
    system::execute(path, start.arguments, memory);
}

/// Whether bytes are a name, or a path whose last part it is.
fn ends_with(bytes: impl Iterator<Item = u8> + Clone, name: &CStr) -> bool {
    let Some(before) = bytes.clone().count().checked_sub(name.count_bytes()) else {
        return false;
    };
    let is_word = before == 0 || bytes.clone().nth(before - 1) == Some(b'/');
    is_word && bytes.skip(before).eq(name.to_bytes().iter().copied())
}

/// Writes to memory that was mapped large enough, and is zero.
struct Writer(usize);

impl Writer {
    fn word(&mut self, word: usize) {
        // SAFETY: `restart_if_needed` mapped room for each word.
        unsafe { with_exposed_provenance_mut::<usize>(self.0).write(word) };
        self.0 += size_of::<usize>();
    }

    fn bytes(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for byte in bytes {
            // SAFETY: `restart_if_needed` mapped room for each byte.
            unsafe { with_exposed_provenance_mut::<u8>(self.0).write(byte) };
            self.0 += 1;
        }
    }
}

/// The system calls that are needed without a C library.
mod system {
    use core::arch::asm;

    /// A call's number on x86-64, and on all other machines.
    const fn number(x86: usize, others: usize) -> usize {
        if cfg!(target_arch = "x86_64") {
            x86
        } else {
            others
        }
    }
    const MMAP: usize = number(9, 222);
    const WRITE: usize = number(1, 64);
    const EXECVE: usize = number(59, 221);
    const PPOLL: usize = number(271, 73);
    const NEWFSTATAT: usize = number(262, 79);

    /// # Safety
    /// The kernel may do to memory what this call does.
    unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
        let [a, b, c, d, e, f] = arguments;
        let result: isize;
        // SAFETY: the registers follow the system call's convention; this function's contract.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
                in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b, in("x2") c,
                in("x3") d, in("x4") e, in("x5") f, options(nostack));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "riscv64")]
        unsafe {
            asm!("ecall", in("a7") number, inlateout("a0") a as isize => result, in("a1") b, in("a2") c,
                in("a3") d, in("a4") e, in("a5") f, options(nostack));
        }
        result
    }

    /// Memory of zeros.
    pub fn map(bytes: usize) -> Option<usize> {
        const READ_WRITE: usize = 3;
        const PRIVATE_ANONYMOUS: usize = 0x22;
        let arguments = [0, bytes, READ_WRITE, PRIVATE_ANONYMOUS, usize::MAX, 0];
        // SAFETY: a new mapping.
        let memory = unsafe { call(MMAP, arguments) };
        (memory > 0).then_some(memory as usize)
    }

    /// The program waits for no reader of its messages: if standard error is full, or nobody reads
    /// it, the text is lost.
    pub fn write_error(text: &[u8]) {
        const STANDARD_ERROR: u16 = 2;
        const POLLOUT: u16 = 4;
        // `struct pollfd`, whose last field is the answer, and a time of 0.
        let mut about = [STANDARD_ERROR, 0, POLLOUT, 0];
        let at = about.as_mut_ptr().expose_provenance();
        let now = [0u64; 2];
        let now = now.as_ptr().expose_provenance();
        // SAFETY: the kernel writes the answer, and reads the time.
        unsafe { call(PPOLL, [at, 1, now, 0, 0, 0]) };
        if about[3] == POLLOUT {
            let from = text.as_ptr().expose_provenance();
            let arguments = [STANDARD_ERROR.into(), from, text.len(), 0, 0, 0];
            // SAFETY: the kernel reads the text.
            unsafe { call(WRITE, arguments) };
        }
    }

    /// The device and the inode of the file at a path.
    pub fn file(path: usize) -> Option<[u64; 2]> {
        const AT_FDCWD: usize = -100isize as usize;
        // Larger than `struct stat`, which begins with these two numbers.
        let mut about = [0u64; 32];
        let to = about.as_mut_ptr().expose_provenance();
        let arguments = [AT_FDCWD, path, to, 0, 0, 0];
        // SAFETY: the path ends with a NUL, and the kernel writes a `struct stat`.
        let failed = unsafe { call(NEWFSTATAT, arguments) } != 0;
        (!failed).then_some([about[0], about[1]])
    }

    /// Returns only if the kernel refuses.
    pub fn execute(path: usize, arguments: usize, environment: usize) {
        // SAFETY: the path ends with a NUL, and both lists of strings with 0.
        unsafe { call(EXECVE, [path, arguments, environment, 0, 0, 0]) };
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of code that the dynamic linker has loaded: the program itself and its libraries.
//!
//! The linker holds its locks while it runs constructors and destructors, and they may wait for the
//! thread that asks here. So this file asks `_dl_find_object` (glibc 2.35), which takes no lock, and
//! follows the linker's list of files, each entry of which it verifies by that function. Where the list
//! has not all files, it reads /proc. On earlier systems, and without /proc, it asks
//! dl_iterate_phdr(3), which waits.

use super::function::{Function, typed};
use super::seccomp::is_filtered;
use super::{aside, clock, proc};
use core::ffi::{CStr, c_int, c_void};
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::*};
use rdmamr_elf::{File, LinkMap, Text};

/// A loaded file. It must stay loaded while the value is in use.
#[derive(Clone, Copy)]
pub struct Object {
    /// From its first mapping to the end of its last one.
    pub start: usize,
    pub end: usize,
    /// The linker's name of the file.
    name: Text,
    tables: File,
}

/// `struct dl_find_object`, of which the last part is reserved.
#[repr(C)]
#[derive(Default)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    map: usize,
    others: [usize; 10],
}

static FIND_OBJECT: Function<unsafe extern "C" fn(*mut c_void, *mut Found) -> c_int> =
    // SAFETY: glibc declares the function so.
    unsafe { Function::new() };

/// Looks up the linker's function. Called when the library is loaded.
pub fn find_next() {
    let [found] = first([(c"_dl_find_object", Some(c"GLIBC_2.35"))], false);
    FIND_OBJECT.set(found);
}

/// The address of a function of the linker itself, if that linker takes no lock to find a file.
pub fn linker() -> Option<NonZeroUsize> {
    NonZeroUsize::new(FIND_OBJECT.get()? as usize)
}

/// The address of the linker's `_r_debug`; 0 if it is not known.
static DEBUG: AtomicUsize = AtomicUsize::new(0);

/// Takes the address of the linker's own `_r_debug`, of which a program that names the symbol has a
/// copy. Called when the library is loaded.
pub fn set_debug(found: Option<NonZeroUsize>) {
    DEBUG.store(found.map_or(0, NonZeroUsize::get), Relaxed);
}

/// `_r_debug.r_version` (glibc 2.35): 1 while the linker has one namespace, and so the process one C
/// library. The linker raises it before a new namespace's code runs, and never lowers it.
pub fn namespaces() -> Option<&'static AtomicI32> {
    linker()?;
    // SAFETY: the symbol is the linker's `struct r_debug`, whose first field is an `int`. It lives as
    // long as the process, and only the linker writes it.
    unsafe { with_exposed_provenance::<AtomicI32>(DEBUG.load(Relaxed)).as_ref() }
}

/// The linker's entry of the file that has this address.
fn entry(address: usize) -> Option<usize> {
    let mut found = Found::default();
    let find_object = FIND_OBJECT.get()?;
    // SAFETY: the function takes any address, and `found` has room for its answer.
    let is_found =
        unsafe { find_object(with_exposed_provenance_mut(address), &raw mut found) == 0 };
    is_found.then_some(found.map)
}

/// The entry beside one that [`entry`] has just returned, in the linker's list: the file that was loaded
/// before it, or after it. `Ok(None)` at the end of the list; `Err` if a file is being unloaded there.
fn beside(map: usize, after: bool) -> Result<Option<usize>, Unknown> {
    // SAFETY: the linker has just said that the file is loaded.
    let next = unsafe { LinkMap::beside(map) }[usize::from(after)];
    if next == 0 {
        return Ok(None);
    }
    // SAFETY: a loaded file's entry names this one, so it was loaded a moment ago. If it is unloaded in
    // this moment, the allocator's bytes are read in its place, and the next line finds that it is gone.
    let dynamic = unsafe { LinkMap::dynamic(next) };
    match entry(dynamic) {
        Some(found) if found == next => Ok(Some(next)),
        _ => Err(Unknown),
    }
}

/// Calls `each` for the entries of this library's namespace, in the order in which the files were
/// loaded. Returns the last one.
fn each_entry(mut each: impl FnMut(usize)) -> Result<usize, Unknown> {
    let mut map = entry(file_begins as fn(_, _) -> _ as usize).ok_or(Unknown)?;
    while let Some(before) = beside(map, false)? {
        map = before;
    }
    loop {
        each(map);
        match beside(map, true)? {
            Some(after) => map = after,
            None => return Ok(map),
        }
    }
}

/// Whether the last part of a path begins so.
fn file_begins(path: Text, stem: &[u8]) -> bool {
    let mut name = path;
    while let Some(part) = name.behind(b'/') {
        name = part;
    }
    name.bytes().take(stem.len()).eq(stem.iter().copied())
}

/// Calls `look` for the files of the list that have that name. Returns the last entry.
fn each_listed(
    soname: &'static CStr,
    stem: &[u8],
    look: &mut dyn FnMut(Object),
) -> Result<usize, Unknown> {
    // Unless a file is unloaded meanwhile, the first walk is the last.
    const WALKS: usize = 3;
    let mut walks = (0..WALKS).map(|_| {
        each_entry(|map| {
            // SAFETY: the linker has just said that the file is loaded.
            let name = unsafe { LinkMap::name(map) };
            // SAFETY: as above.
            let file = unsafe { File::of(map) };
            if file_begins(name, stem) || file.is_called(soname) {
                // SAFETY: the program keeps the sought file loaded.
                unsafe { Object::of(map) }.map(&mut *look);
            }
        })
    });
    walks.find(Result::is_ok).unwrap_or(Err(Unknown))
}

/// The choice among files whose names begin alike: the one of the right soname, else the first.
struct Choice<'a> {
    soname: &'static CStr,
    is_right: &'a dyn Fn(&Object) -> bool,
    found: Option<Object>,
}

impl Choice<'_> {
    fn see(&mut self, file: Object) {
        if (self.is_right)(&file) && (self.found.is_none() || file.is_called(self.soname)) {
            self.found = Some(file);
        }
    }
}

/// Whether the list has all files: there is no second namespace.
fn is_list_whole() -> bool {
    namespaces().is_some_and(|version| version.load(Relaxed) == 1)
}

/// A file that the program may load later, such as a GPU's runtime.
pub struct Sought {
    soname: &'static CStr,
    stem: &'static [u8],
    /// Where the file was found last.
    found: AtomicUsize,
    /// If it was not found: the last entry of the list, and the dynamic section of that entry's file.
    last: [AtomicUsize; 2],
    /// CLOCK_MONOTONIC in ns, until when the unchanged end of the list shows that no file has come. (An
    /// entry and a file may come back at the same addresses.)
    until: AtomicU64,
}

impl Sought {
    /// [`Object::named`] has the two names.
    pub const fn new(soname: &'static CStr, stem: &'static [u8]) -> Sought {
        Sought {
            soname,
            stem,
            found: AtomicUsize::new(0),
            last: [const { AtomicUsize::new(0) }; 2],
            until: AtomicU64::new(0),
        }
    }

    /// The file, if the program has loaded it. The program keeps it loaded as long as it needs it. If no
    /// file has been loaded since the last look, this takes less than 0.1 us.
    #[inline(never)]
    pub fn find(&'static self) -> Option<Object> {
        let known = NonZeroUsize::new(self.found.load(Relaxed)).and_then(Object::with);
        known
            .filter(|known| known.is_called(self.soname))
            .or_else(|| if self.is_absent() { None } else { self.look() })
    }

    fn is_absent(&self) -> bool {
        let [map, dynamic] = self.last.each_ref().map(|it| it.load(Relaxed));
        map != 0
            && entry(dynamic) == Some(map)
            && matches!(beside(map, true), Ok(None))
            && clock::monotonic() < self.until.load(Relaxed)
    }

    fn look(&self) -> Option<Object> {
        /// A program that loads a GPU's runtime has no memory of the GPU before that time is over.
        const SURE: u64 = 100_000_000;
        let mut choice = Choice {
            soname: self.soname,
            is_right: &|_| true,
            found: None,
        };
        let listed = each_listed(self.soname, self.stem, &mut |file| choice.see(file));
        let mut found = choice.found;
        match listed {
            _ if found.is_some() => {}
            Ok(map) if is_list_whole() => {
                // SAFETY: the linker has just said that the file is loaded.
                let dynamic = unsafe { LinkMap::dynamic(map) };
                self.last[0].store(map, Relaxed);
                self.last[1].store(dynamic, Relaxed);
                self.until.store(clock::monotonic() + SURE, Relaxed);
            }
            // The filter may kill at the open of a file.
            _ if is_filtered() => {}
            _ => found = Object::named(self.soname, self.stem, &|_| true).ok()?,
        }
        self.found.store(found?.start, Relaxed);
        found
    }
}

impl Object {
    /// # Safety
    /// This is the linker's entry of a file that stays loaded while the value is in use.
    unsafe fn of(map: usize) -> Option<Object> {
        // SAFETY: this function's contract.
        let dynamic = unsafe { LinkMap::dynamic(map) };
        Object::with(NonZeroUsize::new(dynamic)?)
    }

    /// The file that has the code or the data at this address.
    #[inline(never)]
    pub fn with(address: NonZeroUsize) -> Option<Object> {
        let address = address.get();
        let Some(find_object) = FIND_OBJECT.get() else {
            return find_file(|file| file.object().filter(|object| object.has(address)));
        };
        let mut found = Found::default();
        // SAFETY: the function takes any address, and `found` has room for its answer.
        let is_found =
            unsafe { find_object(with_exposed_provenance_mut(address), &raw mut found) == 0 };
        is_found.then(|| Object {
            start: found.start,
            end: found.end,
            // SAFETY: as below.
            name: unsafe { LinkMap::name(found.map) },
            // SAFETY: this is the linker's entry of a file, which the caller keeps loaded.
            tables: unsafe { File::of(found.map) },
        })
    }

    /// The loaded file whose own name is `soname` or, if there is none, another one whose file name
    /// begins with `stem` and that is the right one. `Err` if the loaded files are not known.
    #[inline(never)]
    pub fn named(
        soname: &'static CStr,
        stem: &[u8],
        is_right: &dyn Fn(&Object) -> bool,
    ) -> Result<Option<Object>, Unknown> {
        let mut choice = Choice {
            soname,
            is_right,
            found: None,
        };
        if FIND_OBJECT.get().is_none() {
            find_file(|file| {
                if file_name(file.name().to_bytes()).starts_with(stem) {
                    file.object().into_iter().for_each(|file| choice.see(file));
                }
                None::<()>
            });
            return Ok(choice.found);
        }
        let listed = each_listed(soname, stem, &mut |file| choice.see(file));
        if listed.is_ok() && (choice.found.is_some() || is_list_whole()) {
            return Ok(choice.found);
        }
        let read: &mut dyn FnMut() -> bool = &mut || {
            proc::each_named_mapping(&mut |mapping, path| {
                if mapping.executable && file_name(path).starts_with(stem) {
                    let code = NonZeroUsize::new(mapping.range.start as usize);
                    let file = code.and_then(Object::with);
                    file.into_iter().for_each(|file| choice.see(file));
                }
                true
            })
        };
        let read = aside::run(&mut *read).unwrap_or_else(read);
        if read { Ok(choice.found) } else { Err(Unknown) }
    }

    /// Whether the file is loaded at this address.
    pub fn has(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The file's path; empty for the program itself.
    pub fn name(&self) -> String {
        let bytes: Vec<u8> = self.name.bytes().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The difference between an address in memory and the same address in the file's own terms.
    pub fn base(&self) -> usize {
        self.tables.base
    }

    pub fn is_called(&self, soname: &'static CStr) -> bool {
        self.tables.is_called(soname)
    }

    /// Whether the file needs the other one.
    pub fn needs(&self, other: &Object) -> bool {
        self.tables.needs(&other.tables)
    }

    /// The address of a symbol that the file itself defines, as dlvsym(3) or dlsym(3) finds it.
    #[inline(never)]
    pub fn find(
        &self,
        name: &'static CStr,
        version: Option<&'static CStr>,
    ) -> Option<NonZeroUsize> {
        let version = version.map(Text::of);
        let is_it = |number| self.tables.is_at(number, version);
        NonZeroUsize::new(self.tables.find(Text::of(name), is_it)?)
    }

    /// The function of that name, if the file defines it.
    ///
    /// # Safety
    /// `F` is the type of the function, as the library's header declares it.
    pub unsafe fn function<F: Copy>(&self, name: &'static CStr) -> Option<F> {
        let address = self.find(name, None);
        // SAFETY: this function's contract.
        address.map(|address| unsafe { typed(address) })
    }
}

/// The loaded files cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct Unknown;

fn file_name(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    &path[slash.map_or(0, |slash| slash + 1)..]
}

/// A loaded file, as dl_iterate_phdr(3) describes it.
struct LoadedFile<'a>(&'a libc::dl_phdr_info);

/// The first result that `look` has for a file. The linker's lock is held meanwhile, so `look` must
/// not load anything.
fn find_file<R, F: FnMut(LoadedFile) -> Option<R>>(look: F) -> Option<R> {
    let mut search = (look, None);
    // SAFETY: `call` has the types of `search` and gets the pointer passed here, which is valid
    // during the call.
    unsafe { libc::dl_iterate_phdr(Some(call::<R, F>), (&raw mut search).cast()) };
    search.1
}

unsafe extern "C" fn call<R, F: FnMut(LoadedFile) -> Option<R>>(
    file: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the linker's entry is valid for the time of the call.
    let file = unsafe { &*file };
    // SAFETY: the pointer is the one that `find_file` passed, and nothing else uses it meanwhile.
    let (look, found) = unsafe { &mut *search.cast::<(F, Option<R>)>() };
    *found = look(LoadedFile(file));
    found.is_some().into()
}

/// A symbol, at the version node if there is one.
pub type Name = (&'static CStr, Option<&'static CStr>);

/// Each symbol's address in the first loaded file, or the first but this library, that defines it.
/// One pass finds all: to find a file's tables costs more than to look a symbol up in them.
pub fn first<const N: usize>(names: [Name; N], but_this: bool) -> [Option<NonZeroUsize>; N] {
    let this = file_name as fn(_) -> _ as usize;
    let mut all = [None; N];
    find_file(|file| {
        let object = file.object()?;
        if !(but_this && object.has(this)) {
            for (found, (name, version)) in all.iter_mut().zip(names) {
                *found = found.or_else(|| object.find(name, version));
            }
        }
        all.iter().all(Option::is_some).then_some(())
    });
    all
}

impl LoadedFile<'_> {
    /// The file's path; empty for the program itself.
    fn name(&self) -> &CStr {
        if self.0.dlpi_name.is_null() {
            return c"";
        }
        // SAFETY: a non-null name is a NUL-terminated string.
        unsafe { CStr::from_ptr(self.0.dlpi_name) }
    }

    fn object(&self) -> Option<Object> {
        let dynamic = self.parts(libc::PT_DYNAMIC).next()?.start;
        let ends = self.parts(libc::PT_LOAD);
        let all = ends.reduce(|all, part| all.start.min(part.start)..all.end.max(part.end))?;
        Some(Object {
            start: all.start as usize,
            end: all.end as usize,
            // SAFETY: as below.
            name: unsafe { Text::at(self.name().as_ptr().expose_provenance()) },
            // SAFETY: the linker states the file's base and program headers, and the caller of
            // `Object` keeps the file loaded.
            tables: unsafe { File::with(self.0.dlpi_addr as usize, dynamic as usize) },
        })
    }

    /// The file's program headers.
    fn headers(&self) -> &[libc::Elf64_Phdr] {
        if self.0.dlpi_phdr.is_null() {
            return &[];
        }
        // SAFETY: the linker states how many headers there are.
        unsafe { core::slice::from_raw_parts(self.0.dlpi_phdr, self.0.dlpi_phnum.into()) }
    }

    /// The address ranges in memory of the file's parts of a kind, `PT_...`.
    fn parts(&self, kind: u32) -> impl Iterator<Item = Range<u64>> {
        let chosen = move |header: &&libc::Elf64_Phdr| header.p_type == kind;
        self.headers().iter().filter(chosen).map(|header| {
            let start = self.0.dlpi_addr + header.p_vaddr;
            start..start + header.p_memsz
        })
    }
}

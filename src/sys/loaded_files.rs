// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of code that the dynamic linker has loaded: the program itself and its libraries.
//!
//! The linker holds its locks while it runs constructors and destructors, and they may wait for the
//! thread that asks here. So this file asks `_dl_find_object` (glibc 2.35), which takes no lock,
//! and /proc. On earlier systems, and without /proc, it asks dl_iterate_phdr(3), which waits.

use super::function::{Function, typed};
use super::{aside, proc};
use core::ffi::{CStr, c_int, c_void};
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::with_exposed_provenance_mut;
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

impl Object {
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
        let mut found: Option<Object> = None;
        let mut look = |object: Object| {
            if is_right(&object) && (found.is_none() || object.tables.is_called(soname)) {
                found = Some(object);
            }
        };
        if FIND_OBJECT.get().is_none() {
            find_file(|file| {
                if file_name(file.name().to_bytes()).starts_with(stem) {
                    file.object().map(&mut look);
                }
                None::<()>
            });
            return Ok(found);
        }
        let read: &mut dyn FnMut() -> bool = &mut || {
            proc::each_named_mapping(&mut |mapping, path| {
                if mapping.executable && file_name(path).starts_with(stem) {
                    let code = NonZeroUsize::new(mapping.range.start as usize);
                    code.and_then(Object::with).map(&mut look);
                }
                true
            })
        };
        let read = aside::run(&mut *read).unwrap_or_else(read);
        if read { Ok(found) } else { Err(Unknown) }
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

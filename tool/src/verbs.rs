// SPDX-License-Identifier: MIT OR Apache-2.0
//! libibverbs, loaded at run time: most of this program is of use where there is none.

use crate::abi::rdma_core::{ibv_context, ibv_device, ibv_mr, ibv_pd};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

/// A library that was loaded, and stays.
#[derive(Clone, Copy)]
pub struct Loaded(*mut c_void);

impl Loaded {
    /// Loads a library; an error is the linker's.
    pub fn open(name: &CStr) -> Result<Loaded, String> {
        let mode = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: those that are loaded here are made to be.
        let handle = unsafe { libc::dlopen(name.as_ptr(), mode) };
        if !handle.is_null() {
            return Ok(Loaded(handle));
        }
        // SAFETY: no conditions.
        let error = unsafe { libc::dlerror() };
        if error.is_null() {
            return Err("dlopen failed without a reason".into());
        }
        // SAFETY: not null, so a string, good until the next call.
        Err(unsafe { CStr::from_ptr(error) }
            .to_string_lossy()
            .into_owned())
    }

    /// What the program itself and all that was loaded with it have, in that order: what is preloaded comes first.
    pub fn whole_program() -> Loaded {
        Loaded(libc::RTLD_DEFAULT)
    }

    /// A function.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function of that name.
    pub unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: a handle, and a string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: the caller vouches for the type, which is as large as a pointer.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }

    /// Where the file is that has a function of that name.
    pub fn path_of(self, name: &CStr) -> Option<PathBuf> {
        // SAFETY: a handle, and a string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: all zeros is a valid `Dl_info`.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: any address may be asked about.
        if address.is_null() || unsafe { libc::dladdr(address, &mut info) } == 0 {
            return None;
        }
        // SAFETY: set by dladdr to a string of the linker's.
        let path = unsafe { CStr::from_ptr(info.dli_fname) };
        Some(PathBuf::from(path.to_str().ok()?))
    }
}

type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
type GetDeviceName = unsafe extern "C" fn(*mut ibv_device) -> *const c_char;
type OpenDevice = unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
type AllocPd = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
/// `ibv_reg_mr`, and its relaxed counterpart.
pub type RegMr = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
/// `ibv_dereg_mr`, and its relaxed counterpart.
pub type DeregMr = unsafe extern "C" fn(*mut ibv_mr) -> c_int;

/// libibverbs.
pub struct Verbs {
    pub library: Loaded,
    get_device_list: GetDeviceList,
    get_device_name: GetDeviceName,
    open_device: OpenDevice,
    alloc_pd: AllocPd,
}

/// An open device. It is never closed: the process ends soon.
pub struct Context(*mut ibv_context);

impl Verbs {
    /// Loads it.
    pub fn load() -> Result<Verbs, String> {
        let library = Loaded::open(c"libibverbs.so.1")?;
        let missing = |name: &CStr| format!("libibverbs.so.1 has no {}", name.to_string_lossy());
        macro_rules! function {
            ($name:expr) => {
                // SAFETY: each with its type in <infiniband/verbs.h>.
                unsafe { library.function($name) }.ok_or_else(|| missing($name))?
            };
        }
        Ok(Verbs {
            library,
            get_device_list: function!(c"ibv_get_device_list"),
            get_device_name: function!(c"ibv_get_device_name"),
            open_device: function!(c"ibv_open_device"),
            alloc_pd: function!(c"ibv_alloc_pd"),
        })
    }

    /// The devices for which it has a provider. An error is an errno.
    fn devices(&self) -> Result<Vec<(String, *mut ibv_device)>, i32> {
        let mut count = 0;
        // SAFETY: the count is writable. The list is never freed, so that its devices stay.
        let list = unsafe { (self.get_device_list)(&mut count) };
        if list.is_null() {
            return Err(errno::errno().0);
        }
        // SAFETY: `count` devices, and a null behind them.
        let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let named = list.iter().map(|&device| {
            // SAFETY: a device of the list.
            let name = unsafe { (self.get_device_name)(device) };
            // SAFETY: a string in the device.
            let name = unsafe { CStr::from_ptr(name) };
            (name.to_string_lossy().into_owned(), device)
        });
        Ok(named.collect())
    }

    /// The names of the devices for which it has a provider.
    pub fn names(&self) -> Vec<String> {
        self.devices()
            .unwrap_or_default()
            .into_iter()
            .map(|device| device.0)
            .collect()
    }

    /// Opens a device.
    pub fn open(&self, name: &str) -> Result<Context, String> {
        let devices = self
            .devices()
            .map_err(|errno| std::io::Error::from_raw_os_error(errno).to_string())?;
        let Some((_, device)) = devices.into_iter().find(|device| device.0 == name) else {
            return Err("libibverbs does not know it".into());
        };
        // SAFETY: a device of a list that was not freed.
        let context = unsafe { (self.open_device)(device) };
        if context.is_null() {
            return Err(std::io::Error::last_os_error().to_string());
        }
        Ok(Context(context))
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self, context: &Context) -> Result<*mut ibv_pd, String> {
        // SAFETY: an open device.
        let pd = unsafe { (self.alloc_pd)(context.0) };
        if pd.is_null() {
            Err(std::io::Error::last_os_error().to_string())
        } else {
            Ok(pd)
        }
    }
}

impl Context {
    /// Its file of the kernel; negative if it has none.
    pub fn fd(&self) -> c_int {
        // SAFETY: open, and never closed.
        unsafe { (*self.0).cmd_fd }
    }
}

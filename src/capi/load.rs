// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looks up the next functions when the library is loaded. Says so if the program's calls bypass the
//! library. No later call asks the dynamic linker for anything: it holds its lock while it runs a
//! constructor, and that may wait for a thread that calls this library.

use super::{cuda, descriptors, memory, rdmamr, ret, tasks};
use core::ffi::CStr;
use rdmamr_cache::dispatch;
use rdmamr_config::{disabled, variable};
use rdmamr_stats::log;
use rdmamr_sys::symbols::{self, Scope};
use rdmamr_sys::{loaded_files, thread};

unsafe extern "C" fn load() {
    ret::always((), || {
        let is_audited = is_audited();
        // Beside the module the linker takes its lock at the first access of any thread to the library's
        // thread-local variables (`tls_get_addr_tail`, glibc's elf/dl-tls.c). ThreadSanitizer, beside
        // which there is no module, does not serve that access yet.
        if is_audited {
            drop(thread::enter());
        }
        loaded_files::find_next();
        loaded_files::set_debug(symbols::find(Scope::Next, c"_r_debug", None));
        memory::find_next();
        memory::find_realloc();
        descriptors::find_next();
        tasks::find_next();
        cuda::find_next();
        rdmamr_next::find_all();
        let is_behind_libibverbs = dispatch::at_load();
        dispatch::ask_filter();
        if is_behind_libibverbs && !disabled() && !is_audited {
            log::always(format_args!(
                "the program is linked to libibverbs before librdmamr, so its ibv_reg_mr bypasses the library, and \
                 regions of ibv_reg_mr_relaxed are not reused. Link -lrdmamr before -libverbs, or preload the library \
                 (LD_PRELOAD)"
            ));
        }
    });
    rdmamr::loaded();
}

/// Whether the module for LD_AUDIT binds the program's calls to this library, whatever the order.
fn is_audited() -> bool {
    let modules = variable(c"LD_AUDIT").map(CStr::to_bytes);
    modules.is_some_and(|modules| modules.windows(MODULE.len()).any(|part| part == MODULE))
}

const MODULE: &[u8] = b"librdmamr-audit.so";

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: unsafe extern "C" fn() = load;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who called: from an address in a file to a function and a line of source, as far as the file has symbols or debug
//! information.
use addr2line::Loader;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Who made a call.
#[derive(Clone, Debug, Serialize)]
pub struct Caller {
    /// The file whose code it is; none if the trace has no file for the address.
    pub module: Option<String>,
    /// The address to which the call returns, in the file's own terms.
    pub offset: u64,
    /// From debug information the function, from symbols alone `symbol+0x12`.
    pub function: Option<String>,
    /// `file:line`.
    pub source: Option<String>,
}

impl Caller {
    /// `module+0x12`, the module without its folder.
    pub fn place(&self) -> String {
        match &self.module {
            Some(module) => format!(
                "{}+{:#x}",
                module.rsplit('/').next().unwrap_or(module),
                self.offset
            ),
            None => format!("{:#x}", self.offset),
        }
    }

    /// The function, or else the place.
    pub fn name(&self) -> String {
        self.function.clone().unwrap_or_else(|| self.place())
    }
}

/// What has been read of the files.
#[derive(Default)]
pub struct Resolver {
    files: FxHashMap<String, Option<Loader>>,
    /// Files that were written after the trace had begun: their lines may not be those of the code that ran.
    pub changed: Vec<String>,
}

impl Resolver {
    /// `began`: when the process did, CLOCK_REALTIME in ns.
    pub fn resolve(&mut self, module: Option<&str>, offset: u64, began: u64) -> Caller {
        let mut caller = Caller {
            module: module.map(str::to_string),
            offset,
            function: None,
            source: None,
        };
        let Some(path) = module else { return caller };
        if !self.files.contains_key(path) {
            let file = self.open(path, began);
            self.files.insert(path.to_string(), file);
        }
        let Some(Some(file)) = self.files.get(path) else {
            return caller;
        };
        // The call itself lies before the address to which it returns, which may be another line's, or another function's.
        let call = offset.wrapping_sub(1);
        if let Ok(mut frames) = file.find_frames(call)
            && let Ok(Some(frame)) = frames.next()
        {
            caller.function = frame
                .function
                .and_then(|name| Some(name.demangle().ok()?.into_owned()));
            caller.source = frame
                .location
                .and_then(|at| Some(format!("{}:{}", at.file?, at.line?)));
        }
        if caller.function.is_none() {
            caller.function = file.find_symbol_info(call).map(|symbol| {
                let name = addr2line::demangle_auto(symbol.name().into(), None);
                format!("{name}+{:#x}", offset - symbol.address())
            });
        }
        caller
    }

    fn open(&mut self, path: &str, began: u64) -> Option<Loader> {
        let metadata = Path::new(path)
            .metadata()
            .ok()
            .filter(|metadata| metadata.is_file())?;
        if metadata
            .modified()
            .is_ok_and(|modified| modified > SystemTime::UNIX_EPOCH + Duration::from_nanos(began))
        {
            self.changed.push(path.to_string());
        }
        Loader::new(path).ok()
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words that a shell completes beside commands and options: the devices of the machine at that
//! moment, and errnos. clap_complete's scripts know neither.

use crate::explain;
use clap_complete::Shell;

const DEVICES: &str = "$(ls /sys/class/infiniband 2>/dev/null)";

/// The script with these words; as it is for shells without them.
pub fn with_words(shell: Shell, script: &str) -> String {
    let errnos = explain::names().join(" ");
    match shell {
        Shell::Bash => format!(
            r#"{script}
_rdmamr_words() {{
    _rdmamr "$@"
    case "${{COMP_WORDS[1]}}" in
        explain) COMPREPLY+=($(compgen -W "{errnos}" -- "$2")) ;;
        doctor | bench) COMPREPLY+=($(compgen -W "{DEVICES}" -- "$2")) ;;
    esac
}}
complete -F _rdmamr_words -o bashdefault -o default rdmamr
"#
        ),
        Shell::Zsh => {
            let lines = script.lines().map(|line| {
                let action = match line.trim_start() {
                    line if line.starts_with("'*::words -- ") => format!(":({errnos})'"),
                    line if line.starts_with("'*::devices -- ")
                        || line.starts_with("'::device -- ") =>
                    {
                        format!(":{{compadd -- {DEVICES}}}'")
                    }
                    _ => return line.to_string(),
                };
                line.replacen(":_default'", &action, 1)
            });
            lines.collect::<Vec<_>>().join("\n") + "\n"
        }
        Shell::Fish => format!(
            r#"{script}
complete -c rdmamr -n "__fish_rdmamr_using_subcommand explain" -f -a "{errnos}"
complete -c rdmamr -n "__fish_rdmamr_using_subcommand doctor" -f -a "(ls /sys/class/infiniband 2>/dev/null)"
complete -c rdmamr -n "__fish_rdmamr_using_subcommand bench" -f -a "(ls /sys/class/infiniband 2>/dev/null)"
"#
        ),
        _ => script.to_string(),
    }
}

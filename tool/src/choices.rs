// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of choices, as the command line spells them.

use clap::ValueEnum;

pub fn name(choice: impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().to_owned())
}

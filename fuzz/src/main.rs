//! libFuzzer at one parser of tollgate: `TOLLGATE_FUZZ` names it, as in `src/fuzz.rs`. One program for all of them, since each would take
//! as long to link as the gateway.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tollgate::fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TOLLGATE_FUZZ").unwrap_or_default();
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, target) = found.unwrap_or_else(|| panic!("TOLLGATE_FUZZ is `{name}`; set it to the name of a corpus"));
    *target
});

fuzz_target!(|input: &[u8]| TARGET(input));

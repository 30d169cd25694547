//! The acceptance suite of the ledger on each engine of the store, and tests of a single engine.
//!
//! A test of `suite/` is `sqlite::suite::holds::...` here. The test opens stores with `engine.rs` of the store's tests. The test edits
//! tables, without the store, with `database.rs` of its engine.

mod simulation;
mod support;

#[allow(
    clippy::duplicate_mod,
    reason = "the suite is compiled once for each engine"
)]
#[allow(dead_code, reason = "the tests of the store use the rest of `engine`")]
mod sqlite {
    mod database;
    #[path = "../../../store/tests/sqlite/engine.rs"]
    mod engine;
    mod full_disk;
    mod handover;
    mod power_loss;
    #[path = "../suite/mod.rs"]
    mod suite;
}

#[allow(
    clippy::duplicate_mod,
    reason = "the suite is compiled once for each engine"
)]
#[allow(dead_code, reason = "the tests of the store use the rest of `engine`")]
mod postgres {
    mod database;
    #[path = "../../../store/tests/postgres/engine.rs"]
    mod engine;
    #[path = "../suite/mod.rs"]
    mod suite;
}

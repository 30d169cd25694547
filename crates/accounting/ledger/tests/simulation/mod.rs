//! A deterministic simulation of several nodes on one database. Ledger and store are the real code; clock, network and server are replaced
//! (`tollgate-simulation`).
//!
//! A seed determines a run: the requests of clients at each node, and the next thread. Connections are lost before, during or after an
//! exchange. Processes are killed, stopped, suspended, or recovered by another process. Wall clocks are wrong. The database crashes or does
//! not answer. In the end the run is repaired and checked. No credit was held or spent twice. Each acknowledged charge is charged once. No
//! refusal was wrong. Each node has read every change. The whole credit can be used at any node, and the audit finds no violation.

mod book;
mod checks;
mod client;
mod cluster;
mod faults;
mod keys;
mod mishaps;
mod node;

use std::sync::Mutex;

use cluster::Cluster;
use faults::Fault;

/// Runs without a fault.
const RUNS: u64 = 15;

/// Maximum runs to find a fault.
const FAULT_RUNS: u64 = 200;

/// A setting of the tests: `TOLLGATE_SIMULATIONS` is the number of runs; `TOLLGATE_SEED` is the seed of a single run.
#[expect(
    clippy::disallowed_methods,
    reason = "more runs than fit in a test, and the one to repeat, are asked for by the environment"
)]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The seeds of runs.
fn seeds(first: u64, runs: u64) -> std::ops::Range<u64> {
    match number("TOLLGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + runs,
    }
}

#[test]
fn nothing_is_lost_or_spent_twice_whatever_happens_to_nodes_network_and_database() {
    let seeds = Mutex::new(seeds(0, number("TOLLGATE_SIMULATIONS").unwrap_or(RUNS)));
    let next = || seeds.lock().ok()?.next();
    // A failed run poisons the seeds: no further run begins.
    let failed = |problem: &str| {
        let _seeds = seeds.lock().expect("the first failure");
        panic!("{problem}");
    };
    let simulate = || {
        while let Some(seed) = next() {
            let mut cluster = Cluster::new(seed, None);
            let violations = cluster.run();
            if !violations.is_empty() {
                let (trace, _) = cluster.sim.trace();
                failed(&format!(
                    "{}\nseed {seed}: {}\nrun it alone with TOLLGATE_SEED={seed}",
                    trace.join("\n"),
                    violations.join("\n")
                ));
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(simulate);
        }
    });
}

#[test]
fn a_seed_repeats_its_run() {
    let digest = || {
        let mut cluster = Cluster::new(7, None);
        cluster.run();
        cluster.sim.trace()
    };
    let (first, second) = (digest(), digest());
    assert_eq!(first, second);
}

#[test]
fn every_fault_that_is_put_in_is_found() {
    are_found(&Fault::ALL, Cluster::new, |_| true);
}

#[test]
fn faults_of_allotments_are_found_where_they_strike_the_cap_of_a_key() {
    let is_of_cap = |violation: &str| violation.contains("cap of");
    are_found(&Fault::OF_CAPS, Cluster::of_caps, is_of_cap);
    are_found(&Fault::OF_CAPS_BESIDE_ACCOUNTS, Cluster::new, is_of_cap);
}

fn are_found(
    faults: &[(Fault, u64)],
    cluster: fn(u64, Option<Fault>) -> Cluster,
    is_of: impl Fn(&str) -> bool,
) {
    let mut missed = Vec::new();
    for (fault, first) in faults.iter().copied() {
        let found = seeds(first, FAULT_RUNS).find_map(|seed| {
            let violations = cluster(seed, Some(fault)).run();
            let found = violations.into_iter().find(|violation| is_of(violation));
            found.map(|found| (seed, found))
        });
        match found {
            // Shown in the output of a failed test, or with `--nocapture`.
            Some((seed, found)) => {
                eprintln!("{fault:?}: seed {seed}: {found}");
                let without = cluster(seed, None).run();
                assert!(
                    without.is_empty(),
                    "{fault:?} is not what it finds: {without:?}"
                );
            }
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

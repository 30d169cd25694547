//! Scripted faults of a stand-in, and the count of its calls.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use serde::Deserialize;

/// A scripted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Fault<Operation, Effect> {
    /// The operation.
    pub operation: Operation,
    /// The effect.
    pub effect: Effect,
    /// Number of times.
    #[serde(default = "once")]
    pub times: u32,
}

impl<Operation, Effect> Fault<Operation, Effect> {
    /// A fault that happens once.
    pub fn once(operation: Operation, effect: Effect) -> Self {
        Fault {
            operation,
            effect,
            times: 1,
        }
    }

    /// The same, a number of times.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Fault { times, ..self }
    }
}

fn once() -> u32 {
    1
}

/// The faults of the next calls, and the number of calls so far.
pub(crate) struct Faults<Operation, Effect> {
    scripted: VecDeque<Fault<Operation, Effect>>,
    calls: HashMap<Operation, u64>,
}

impl<Operation, Effect> Default for Faults<Operation, Effect> {
    fn default() -> Self {
        Faults {
            scripted: VecDeque::new(),
            calls: HashMap::new(),
        }
    }
}

impl<Operation: Copy + Eq + Hash, Effect: Clone> Faults<Operation, Effect> {
    /// Adds a fault after the existing ones.
    pub(crate) fn add(&mut self, fault: Fault<Operation, Effect>) {
        self.scripted.push_back(fault);
    }

    /// Removes all faults.
    pub(crate) fn clear(&mut self) {
        self.scripted.clear();
    }

    /// How often an operation was called.
    pub(crate) fn calls(&self, operation: Operation) -> u64 {
        self.calls.get(&operation).copied().unwrap_or(0)
    }

    /// Counts a call, and returns the effect of the first fault of its operation.
    pub(crate) fn on_call(&mut self, operation: Operation) -> Option<Effect> {
        *self.calls.entry(operation).or_default() += 1;
        let mut scripted = self.scripted.iter();
        let at = scripted.position(|fault| fault.operation == operation)?;
        let fault = &mut self.scripted[at];
        let effect = fault.effect.clone();
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            self.scripted.remove(at);
        }
        Some(effect)
    }
}

//! Provider selection: the providers of each model, their health and capacity, and the choice of the next provider to call.

mod admission;
mod budget;
mod call_guard;
mod candidate;
mod circuit;
mod evidence;
mod health;
mod load_balancing;
mod maintenance;
mod probe;
mod provider;
mod providers;
mod selection;
mod view;

pub(super) use self::call_guard::{CallGuard, CircuitUse, SelectionInput};
pub(super) use self::candidate::FailureScope;
pub(super) use self::evidence::{Account, account_of};
pub(super) use self::load_balancing::CandidateSet;
pub(crate) use self::providers::Providers;
pub(super) use self::selection::{Candidates, Selection, Unavailable};
pub(crate) use self::view::{CandidateView, ProviderView};

//! The rails on which the plan is paid, and the check that precedes each payment: no other rail has a purchase of the account open.
//!
//! A stored row is not enough to decide this: a buyer approves at the provider, and its notification may be lost. So each other rail first
//! reconciles what it has open for the account at its source.

use std::error::Error;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tollgate_money::AccountId;
use tollgate_store::Route;

/// How long all rails together may take. A rail that takes longer counts as one that could not be read.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why other rails are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// A payment is offered. An answer of a moment ago counts.
    Offer,
    /// A payment is about to be made. The source is read after the question: its buyer may have approved since the last read.
    Payment,
}

/// A way of payment for the plan that moves money on its own.
#[async_trait]
pub trait Rail: Send + Sync {
    /// The route that its payments are recorded with.
    fn route(&self) -> Route;

    /// Reconciles each purchase that the account has open on this rail with its source. Returns whether money may still move on it.
    ///
    /// # Errors
    ///
    /// The source could not be read, and money may move on it.
    async fn has_open(
        &self,
        account: AccountId,
        question: Question,
    ) -> Result<bool, Box<dyn Error + Send + Sync>>;
}

/// The rails of a process. A rail holds the plans that hold this list, so the list holds no rail.
#[derive(Default)]
pub(super) struct Rails {
    rails: Mutex<Vec<Weak<dyn Rail>>>,
}

impl Rails {
    pub(super) fn add(&self, rail: &Arc<dyn Rail>) {
        let mut rails = self.rails.lock();
        rails.push(Arc::downgrade(rail));
    }

    /// Whether money may still move for the account on a rail other than `own`. One that cannot be read in time counts as open: a payment
    /// that is refused is made again, one that is made twice has to be given back.
    pub(super) async fn have_open(
        &self,
        account: AccountId,
        own: Route,
        question: Question,
    ) -> bool {
        let rails: Vec<_> = {
            let rails = self.rails.lock();
            rails.iter().filter_map(Weak::upgrade).collect()
        };
        let others = async {
            for rail in rails.iter().filter(|rail| rail.route() != own) {
                let route = rail.route().word();
                match rail.has_open(account, question).await {
                    Ok(false) => {}
                    Ok(true) => {
                        tracing::info!(%account, route, "payment refused: another one of the account is open");
                        return true;
                    }
                    Err(error) => {
                        tracing::warn!(%account, route, %error, "payment refused: an open one could not be reconciled");
                        return true;
                    }
                }
            }
            false
        };
        match tokio::time::timeout(RECONCILE_TIMEOUT, others).await {
            Ok(is_open) => is_open,
            Err(_) => {
                tracing::warn!(%account, own = own.word(), "payment refused: reconciling other routes took too long");
                true
            }
        }
    }
}

//! The rails of the plan's payments, and the check before each payment: no other rail has an open purchase of the account.
//!
//! A stored row is not enough for this check: a buyer approves at the provider, and the notification may be lost. So each other rail first
//! reconciles the account's open purchases at their source.

use std::error::Error;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tollgate_money::AccountId;
use tollgate_store::Route;

/// Timeout of all rails together. A slower rail counts as unreadable.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason for the question to other rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// A payment is offered. An answer of a moment ago counts.
    Offer,
    /// A payment is about to be made. The source is read after the question: its buyer may have approved since the last read.
    Payment,
}

/// A way of payment for the plan with independent movements of money.
#[async_trait]
pub trait Rail: Send + Sync {
    /// The route recorded with the rail's payments.
    fn route(&self) -> Route;

    /// Reconciles each open purchase of the account on this rail with its source. Returns whether money may still move on this rail.
    ///
    /// # Errors
    ///
    /// The source could not be read, and money may move on this rail.
    async fn has_open(
        &self,
        account: AccountId,
        question: Question,
    ) -> Result<bool, Box<dyn Error + Send + Sync>>;
}

/// The rails of a process. A rail holds the plans, and the plans this list; so the list holds weak references.
#[derive(Default)]
pub(super) struct Rails {
    rails: Mutex<Vec<Weak<dyn Rail>>>,
}

impl Rails {
    pub(super) fn add(&self, rail: &Arc<dyn Rail>) {
        let mut rails = self.rails.lock();
        rails.push(Arc::downgrade(rail));
    }

    /// Whether money may still move for the account on a rail other than `own`. A rail not read in time counts as open: a refused payment
    /// is made again, a double payment has to be given back.
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

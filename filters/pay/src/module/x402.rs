//! The processor of signed transfers, built from `[payments.x402]`.

use std::sync::Arc;

use tollgate_filter::ServiceIdentity;
use tollgate_module::{Build, BuildError};
use tollgate_purchase::plan::Plan;
use tollgate_purchase::wire::Product;
use tollgate_store::Store;

use crate::X402Settings;
use crate::x402::{CONFIRM, Node, Processor, WAIT, X402Deps, payment_reference};

/// Payments that are read from the store at once.
const PAGE: usize = 500;

/// The processor of signed transfers; `None` where x402 is not configured.
pub(super) fn processor(build: &Build<'_>) -> Result<Option<Processor>, BuildError> {
    let settings: Option<X402Settings> = build.get()?;
    let store: Arc<dyn Store> = build.get()?;
    log_unreconcilable(settings.as_ref(), &*store);
    let Some(known) = settings else {
        return Ok(None);
    };
    let facilitator = known.facilitator().map_err(BuildError::of)?;
    let node = known.node().map_err(BuildError::of)?;
    let (plan, service): (Plan, ServiceIdentity) = (build.get()?, build.get()?);
    Ok(Some(Processor::new(X402Deps {
        store,
        plans: build.get()?,
        idempotency_keys: build.get()?,
        facilitator: Arc::new(facilitator),
        node: node.map(|node| Arc::new(node) as Arc<dyn Node>),
        terms: known.terms,
        product: Product::new(&plan, &service.base_url, build.get()?),
        clock: build.get()?,
        wait: WAIT,
        confirm: CONFIRM,
        runtime: build.get()?,
    })))
}

/// Logs open payments that were started under other settings: with these they cannot be reconciled, and while one is open its account
/// cannot pay by any route.
fn log_unreconcilable(settings: Option<&X402Settings>, store: &dyn Store) {
    let network = settings.map(|known| &*known.terms.network);
    let mut last = None;
    loop {
        let open = match store.authorizations_open(last.as_ref(), PAGE) {
            Ok(open) => open,
            Err(error) => {
                tracing::error!(%error, "reading open payments failed");
                return;
            }
        };
        for row in &open {
            if network != Some(&*row.key.network) {
                tracing::error!(account = %row.account, payment = payment_reference(row),
                    "cannot reconcile open payment: `[payments.x402]` no longer names its chain; restore the settings, or look the payment up and close it with `tollgate payment close`");
            }
        }
        last = open.into_iter().next_back();
        if last.is_none() {
            return;
        }
    }
}

//! The module `x402`: the processor of signed transfers, built from `[payments.x402]`.

use std::sync::Arc;

use http::HeaderValue;
use secrecy::ExposeSecret;
use tollgate_clock::Clock;
use tollgate_module::{Build, BuildError, Module};
use tollgate_pay::x402::{
    CONFIRM, HttpClientError, HttpFacilitator, HttpNode, Node, Processor, WAIT, X402Deps,
    payment_reference,
};
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::plan::Plans;
use tollgate_purchase::wire::Product;
use tollgate_store::Store;

use crate::config::Settings;

/// Payments that are read from the store at once.
const PAGE: usize = 500;

/// Sale of the plan by signed transfers.
pub(crate) struct X402Module;

impl Module for X402Module {
    fn name(&self) -> &'static str {
        "x402"
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: Arc<Settings> = build.get()?;
        let processor = processor(
            &settings,
            &build.get()?,
            (&build.get()?, &build.get()?),
            &build.get()?,
            build.get()?,
        );
        if let Some(processor) = processor.map_err(BuildError::of)? {
            build.provide(processor);
        }
        Ok(())
    }
}

/// The processor of signed transfers; `None` where x402 is not configured.
fn processor(
    settings: &Settings,
    store: &Arc<dyn Store>,
    (plans, idempotency_keys): (&Plans, &IdempotencyKeys),
    clock: &Clock,
    runtime: PurchaseTasks,
) -> Result<Option<Processor>, HttpClientError> {
    log_unreconcilable(settings, store);
    let Some(known) = &settings.payments.x402 else {
        return Ok(None);
    };
    let bearer = known.facilitator_token.as_ref().and_then(|token| {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).ok()?;
        value.set_sensitive(true);
        Some(value)
    });
    let roots = known.roots.as_deref();
    let facilitator = HttpFacilitator::new(&known.facilitator_url, roots, Arc::new(bearer))?;
    let node = match &known.rpc_url {
        Some(url) => Some(Arc::new(HttpNode::new(url.expose_secret(), roots)?) as Arc<dyn Node>),
        None => None,
    };
    let base_url = settings.service.base_url.as_str();
    Ok(Some(Processor::new(X402Deps {
        store: store.clone(),
        plans: plans.clone(),
        idempotency_keys: idempotency_keys.clone(),
        facilitator: Arc::new(facilitator),
        node,
        terms: known.terms.clone(),
        product: Product::new(&settings.plan, base_url, settings.service.root_url.as_str()),
        clock: clock.clone(),
        wait: WAIT,
        confirm: CONFIRM,
        runtime,
    })))
}

/// Logs open payments that were started under other settings: with these they cannot be reconciled, and while one is open its account
/// cannot pay by any route.
fn log_unreconcilable(settings: &Settings, store: &Arc<dyn Store>) {
    let network = settings
        .payments
        .x402
        .as_ref()
        .map(|x402| &*x402.terms.network);
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

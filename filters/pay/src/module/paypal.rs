//! The module `paypal`: purchases of credits and mandates for the plan, paid with PayPal, built from `[payments.paypal]`.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_counters::{Counters, Metric, Source, metrics};
use tollgate_filter::ServiceIdentity;
use tollgate_module::{Build, BuildError, Module, Reload, SectionType, Services};
use tollgate_paypal::{Client, PlanSubscriptions};
use tollgate_purchase::mandates::{MandateDeps, Mandates};
use tollgate_purchase::{Credits, Draw, PurchaseTasks, TopUpDeps, TopUps};
use tollgate_store::{MandateState, Store};

use crate::settings::{PayPalSettings, RawPayPal};

metrics! {
    PURCHASES = "tollgate_purchases_total", Counter, ["event"],
        "Purchases of credits: begun, captured, failed, declined, unclear (an answer was lost), stuck (needs an operator), returned.";
    MANDATES = "tollgate_mandates_total", Counter, ["event"],
        "Mandates, the permission to charge for the plan each month: begun, activated (first paid), charges paid, advanced (a day for a payment not listed yet), past_due, ended, surplus (not wanted), refunded, returned, unclear (an answer was lost), vanished (agreed to, and unknown to the provider for a day), stuck (needs an operator).";
}

/// PayPal as the payment provider of purchases.
pub struct PayPalModule;

impl Module for PayPalModule {
    fn name(&self) -> &'static str {
        "paypal"
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawPayPal>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: Option<PayPalSettings> = build.get()?;
        let store: Arc<dyn Store> = build.get()?;
        let Some(known) = settings else {
            log_unattended_mandates(&*store);
            build.metrics(source(None));
            return Ok(());
        };
        let (clock, entropy): (Clock, Entropy) = (build.get()?, build.get()?);
        let (credits, service): (Credits, ServiceIdentity) = (build.get()?, build.get()?);
        let runtime: PurchaseTasks = build.get()?;
        let client = Client::new(known.client, clock.clone()).map_err(BuildError::of)?;
        let environment = client.environment().to_string();
        let draw = || -> Draw {
            let entropy = entropy.clone();
            Box::new(move |out: &mut [u8]| entropy.fill(out))
        };
        // Also without a price: purchases from before its removal, or at another node, are still captured and credited.
        let top_ups = TopUps::new(TopUpDeps {
            store: store.clone(),
            ledger: build.get()?,
            orders: Arc::new(client.clone()),
            environment: environment.clone(),
            offer: credits.offer,
            description: format!("Credits for {}", service.name),
            clock: clock.clone(),
            draw: draw(),
            runtime: runtime.clone(),
        });
        // Also without a plan at PayPal, which continues to charge existing mandates.
        let mandates = Mandates::new(MandateDeps {
            store,
            plans: build.get()?,
            recurring: Arc::new(PlanSubscriptions::new(
                client.clone(),
                known.plan_id.as_deref(),
            )),
            plan_id: known.plan_id,
            environment,
            clock,
            draw: draw(),
            runtime,
        });
        build.metrics(source(Some((top_ups.clone(), mandates.clone()))));
        build.provide(top_ups.clone());
        build.leader_job(move || {
            let top_ups = top_ups.clone();
            async move { top_ups.run().await }
        });
        build.provide(mandates.clone());
        build.leader_job(move || {
            let mandates = mandates.clone();
            async move { mandates.run().await }
        });
        build.provide(client);
        Ok(())
    }

    /// The OAuth client is rotated; everything else needs a restart.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let old: Option<PayPalSettings> = running.get("paypal")?;
        let new: Option<PayPalSettings> = settings.get("paypal")?;
        let client: Option<Client> = running.find();
        match (old, new, client) {
            (Some(old), Some(new), Some(client))
                if old.plan_id == new.plan_id
                    && old.client.differs_in_credentials_alone(&new.client) =>
            {
                Ok(Reload::ready(move || {
                    client.replace_credentials(&new.client)
                }))
            }
            _ => Ok(Reload::Fixed),
        }
    }
}

/// The results of purchases; zeros without sales.
fn source(processors: Option<(TopUps, Mandates)>) -> Source {
    let (no_top_ups, no_mandates) = (Counters::default(), Counters::default());
    Box::new(move |samples| {
        let (top_ups, mandates) = match &processors {
            Some((top_ups, mandates)) => (top_ups.counters(), mandates.counters()),
            None => (&no_top_ups, &no_mandates),
        };
        samples.numbers(PURCHASES, top_ups.values());
        samples.numbers(MANDATES, mandates.values());
    })
}

/// Logs mandates that PayPal may charge while no processor would detect the charge.
fn log_unattended_mandates(store: &dyn Store) {
    use MandateState::{
        Active, Agreed, CancelAtEnd, CancelPending, Created, Dropped, Duplicate, Open, Resuming,
    };
    let states = [
        Created,
        Open,
        Agreed,
        Active,
        CancelAtEnd,
        CancelPending,
        Resuming,
        Duplicate,
        Dropped,
    ];
    let live: u64 = states
        .into_iter()
        // A failure to read the store is reported elsewhere.
        .filter_map(|state| store.mandates_in(state).ok())
        .sum();
    if live > 0 {
        tracing::error!(
            live,
            "cannot reconcile mandates: `payments.paypal` is missing, and PayPal may continue to charge buyers; restore the settings"
        );
    }
}

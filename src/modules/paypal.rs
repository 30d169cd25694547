//! PayPal as the payment provider of purchases, built from `[payments.paypal]`.

use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use tollgate_clock::{Clock, Entropy};
use tollgate_ledger::Ledger;
use tollgate_paypal as paypal;
use tollgate_purchase::mandates::{MandateDeps, Mandates};
use tollgate_purchase::plan::Plans;
use tollgate_purchase::{PurchaseTasks, TopUpDeps, TopUps};
use tollgate_store::{MandateState, Store};

use crate::config::{self, Settings};

/// A client of PayPal, and the processors of the purchases paid with it.
#[derive(Clone)]
pub(crate) struct PayPal {
    pub(crate) client: paypal::Client,
    /// Purchases of credits; `None` where credits have no price.
    pub(crate) top_ups: Option<TopUps>,
    /// Consent to the monthly charge for the plan. Present without a PayPal plan too: PayPal continues to charge existing mandates.
    pub(crate) mandates: Mandates,
}

impl PayPal {
    /// Built from the settings; `None` where PayPal is not configured.
    pub(crate) fn new(
        settings: &Settings,
        (store, ledger, plans): (&Arc<dyn Store>, &Ledger, &Plans),
        (clock, entropy): (&Clock, &Entropy),
        runtime: PurchaseTasks,
    ) -> Result<Option<PayPal>, paypal::ClientError> {
        let Some(known) = &settings.payments.paypal else {
            log_unattended_mandates(&**store);
            return Ok(None);
        };
        let client = client(settings, known, clock)?;
        if known.webhook_id.is_none() {
            tracing::warn!(
                "`payments.paypal.webhook_id` is missing: webhook events are refused, and payments are found by periodic reconciliation"
            );
        }
        let draw = || {
            let entropy = entropy.clone();
            Box::new(move |out: &mut [u8]| entropy.fill(out))
        };
        let top_ups = settings.credits.offer.as_ref().map(|offer| {
            TopUps::new(TopUpDeps {
                store: store.clone(),
                ledger: ledger.clone(),
                orders: Arc::new(client.clone()),
                environment: known.environment.to_string(),
                offer: offer.clone(),
                description: format!("Credits for {}", settings.service.name),
                clock: clock.clone(),
                draw: draw(),
                runtime: runtime.clone(),
            })
        });
        let plan_id = known.plan_id.as_deref();
        let mandates = Mandates::new(MandateDeps {
            store: store.clone(),
            plans: plans.clone(),
            recurring: Arc::new(paypal::PlanSubscriptions::new(client.clone(), plan_id)),
            plan_id: plan_id.map(str::to_owned),
            environment: known.environment.to_string(),
            clock: clock.clone(),
            draw: draw(),
            runtime: runtime.clone(),
        });
        Ok(Some(PayPal {
            client,
            top_ups,
            mandates,
        }))
    }

    /// Runs the periodic work of all processors, until dropped.
    pub(crate) async fn run(self) {
        let top_ups = async {
            if let Some(top_ups) = &self.top_ups {
                top_ups.run().await;
            }
        };
        tokio::join!(top_ups, self.mandates.run());
    }
}

/// Logs mandates that PayPal may charge while no processor would detect it.
fn log_unattended_mandates(store: &dyn Store) {
    use MandateState::{Active, Agreed, CancelPending, Created, Dropped, Duplicate, Open};
    let states = [
        Created,
        Open,
        Agreed,
        Active,
        CancelPending,
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

/// A client built from the settings.
pub(crate) fn client(
    settings: &Settings,
    known: &config::PayPal,
    clock: &Clock,
) -> Result<paypal::Client, paypal::ClientError> {
    let brand: &str = &settings.service.name;
    paypal::Client::new(
        paypal::Settings {
            environment: known.environment.clone(),
            client_id: SecretString::from(known.client_id.expose_secret().to_owned()),
            client_secret: SecretString::from(known.client_secret.expose_secret().to_owned()),
            webhook_id: known.webhook_id.clone(),
            verify: known.verify,
            roots: known.roots.clone(),
            brand: brand.chars().take(127).collect(),
            timeouts: paypal::Timeouts {
                connect: known.connect,
                call: known.call,
            },
        },
        clock.clone(),
    )
}

//! PayPal as purchases see it, and what is built from `[payments.paypal]`.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tollgate_filter::{Clock, Entropy};
use tollgate_ledger::Ledger;
use tollgate_paypal as paypal;
use tollgate_purchase::{
    Capture, CaptureStatus, NewOrder, Order, OrderError, OrderStatus, Orders, Parts, Placed,
    TopUps, Trouble,
};
use tollgate_store::Store;

use crate::config::Settings;

/// A client of PayPal, and the desk where purchases are made with it.
#[derive(Clone)]
pub(crate) struct PayPal {
    pub(crate) client: paypal::Client,
    pub(crate) top_ups: TopUps,
}

impl PayPal {
    /// What the settings have; nothing where nothing can be paid with PayPal.
    pub(crate) fn new(
        settings: &Settings,
        (store, ledger): (&Arc<dyn Store>, &Ledger),
        (clock, entropy): (&Clock, &Entropy),
        runtime: Handle,
    ) -> Result<Option<PayPal>, paypal::ClientError> {
        let (Some(known), Some(offer)) = (&settings.payments.paypal, &settings.credits.offer)
        else {
            return Ok(None);
        };
        let brand: &str = &settings.service.name;
        let client = paypal::Client::new(
            paypal::Settings {
                environment: known.environment.clone(),
                client_id: paypal::Secret::new(known.client_id.expose().to_owned()),
                client_secret: paypal::Secret::new(known.client_secret.expose().to_owned()),
                webhook_id: known.webhook_id.clone(),
                verify: known.verify,
                roots: known.roots.clone(),
                brand: brand.chars().take(127).collect(),
                times: paypal::Times {
                    connect: known.connect,
                    call: known.call,
                },
            },
            clock.clone(),
        )?;
        if known.webhook_id.is_none() {
            tracing::warn!(
                "`payments.paypal.webhook_id` is missing: notices are refused, and payments are found by looking"
            );
        }
        let (clock, entropy) = (clock.clone(), entropy.clone());
        let top_ups = TopUps::new(Parts {
            store: store.clone(),
            ledger: ledger.clone(),
            orders: Arc::new(PayPalOrders(client.clone())),
            environment: known.environment.to_string(),
            offer: offer.clone(),
            description: format!("Credits for {brand}"),
            now: Box::new(move || clock.unix_micros()),
            draw: Box::new(move |out| entropy.fill(out)),
            runtime,
        });
        Ok(Some(PayPal { client, top_ups }))
    }
}

/// PayPal's orders, in the words of a purchase.
struct PayPalOrders(paypal::Client);

#[async_trait]
impl Orders for PayPalOrders {
    async fn create(&self, order: &NewOrder<'_>) -> Result<Placed, OrderError> {
        let id = order.top_up.to_string();
        let order = paypal::NewOrder {
            key: order.key,
            id: &id,
            price: order.price,
            description: order.description,
            return_url: order.return_url,
            cancel_url: order.cancel_url,
        };
        let placed = self.0.create_order(&order).await.map_err(error)?;
        Ok(Placed {
            order: placed.id,
            approve_url: placed.approve_url,
        })
    }

    async fn read(&self, order: &str) -> Result<Order, OrderError> {
        let seen = self.0.order(order).await.map_err(error)?;
        Ok(Order {
            status: match seen.status {
                paypal::OrderStatus::Waiting => OrderStatus::Waiting,
                paypal::OrderStatus::Approved => OrderStatus::Approved,
                paypal::OrderStatus::Completed => OrderStatus::Completed,
                paypal::OrderStatus::Voided => OrderStatus::Voided,
            },
            price: seen.price,
            top_up: seen.custom_id,
            capture: seen.capture.map(|capture| Capture {
                id: capture.id,
                status: match capture.status {
                    paypal::CaptureStatus::Completed => CaptureStatus::Completed,
                    paypal::CaptureStatus::Pending => CaptureStatus::Pending,
                    paypal::CaptureStatus::Declined => CaptureStatus::Declined,
                },
                amount: capture.amount,
            }),
            returned: seen.returned,
        })
    }

    async fn capture(&self, order: &str, key: &str) -> Result<(), OrderError> {
        self.0.capture_order(order, key).await.map_err(error)
    }
}

fn error(error: paypal::Error) -> OrderError {
    use paypal::ErrorKind;
    let trouble = match error.kind {
        ErrorKind::Unavailable => Trouble::Unavailable,
        ErrorKind::Ours => Trouble::Ours,
        ErrorKind::Gone => Trouble::Gone,
        ErrorKind::NotApproved => Trouble::NotApproved,
        ErrorKind::Declined => Trouble::Declined,
        ErrorKind::AlreadyDone => Trouble::AlreadyDone,
        ErrorKind::Refused => Trouble::Refused,
        // What is not known yet may have been done.
        _ => Trouble::Unclear,
    };
    OrderError {
        trouble,
        message: error.to_string(),
    }
}

//! The gateway under measurement: tollgate embedded, with one more filter, `pass`, which forwards without reading anything.
//!
//! A chain of `pass` alone is tollgate with all filters off; what it costs is what the gateway itself costs.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use bytes::Bytes;
use memchr::memmem;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::Gateway;
use tollgate::config::{self, Environment};
use tollgate_filter::{
    Api, Body, Catalog, Contract, Exchange, FailureMode, Filter, Forward, ForwardBody, Model,
    Outcome, Phase, ProviderModel, Step,
};

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The settings.
    #[arg(long)]
    config: PathBuf,
}

/// Serves until SIGTERM.
pub(crate) fn run(options: &Options) -> Result<()> {
    let builder = Gateway::builder().filter("pass", |context| {
        let catalog: Arc<Catalog> = context.services.get("pass")?;
        let model = catalog.models().first().cloned();
        let model = model
            .ok_or_else(|| tollgate::BuildError::new("`pass` needs a model; add a `[[model]]`"))?;
        let bytes_max = context.body_bytes_max;
        Ok(Arc::new(Pass { model, bytes_max }))
    });
    let settings = config::load(
        &options.config,
        &Environment::of_process(),
        &builder.declarations(),
    )
    .map_err(|report| anyhow!("{report}"))?;
    let gateway = builder.start(settings)?;
    let stop = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    gateway
        .run(stop)
        .map_err(|failure| anyhow!("{}", failure.message))
}

struct Pass {
    model: Arc<Model>,
    bytes_max: usize,
}

impl Filter for Pass {
    fn name(&self) -> &'static str {
        "pass"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Json {
                bytes_max: self.bytes_max,
            },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let stream = memmem::find(&exchange.request.body, b"\"stream\":true").is_some();
        exchange.put(Forward {
            model: self.model.clone(),
            api: Api::Chat,
            asked: Api::Chat,
            tokens_max: 0,
            quote: None,
            stream,
            body: Box::new(Same),
        });
        Step::now(Outcome::Continue)
    }
}

/// Returns the body unchanged.
struct Same;

impl ForwardBody for Same {
    fn render(&self, exchange: &Exchange, _: &ProviderModel) -> Bytes {
        exchange.request.body.clone()
    }

    fn cap_output(&mut self, _: tollgate_filter::OutputCap) {}
}

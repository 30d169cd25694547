//! Choosing a provider for a call, and what becomes of its health.

use std::sync::Arc;

use tollgate_chain::{Upstream, UpstreamError};
use tollgate_filter::{Clock, Exchange, Forward, ProviderModel, UpstreamFault};

use super::attempt::{Ask, Connections};
use super::call::Call;
use super::fault;
use super::providers::{Provider, Providers};
use crate::telemetry::Telemetry;

/// Makes the calls of one worker.
pub(crate) struct Caller {
    providers: Arc<Providers>,
    telemetry: Telemetry,
    connections: Arc<Connections>,
}

impl Caller {
    pub(crate) fn new(providers: Arc<Providers>, clock: Clock, telemetry: Telemetry) -> Caller {
        let connections = Connections::new(providers.any_needs_connector(), clock);
        Caller {
            providers,
            telemetry,
            connections: Arc::new(connections),
        }
    }

    /// Calls one provider.
    async fn call_provider(
        &self,
        exchange: &mut Exchange,
        at: &ProviderModel,
    ) -> Result<Call, UpstreamError> {
        let Some(provider) = self.providers.named(&at.provider) else {
            return Err(fault::unreachable(format!(
                "no provider is named `{}`",
                at.provider
            )));
        };
        exchange.record.provider = Some(provider.settings.name.clone());
        let Some(forward) = exchange.get::<Forward>() else {
            return Err(fault::invalid("nothing to forward"));
        };
        let ask = Ask {
            path: forward.api.path(),
            stream: forward.stream,
            body: forward.body.render(&exchange.request.body, &at.model),
        };
        let calls = &mut exchange.record.upstream_calls;
        let result = self.connections.attempt(provider, &ask, calls).await;
        let result = result.map_err(|failed| failed.error);
        let fault = result.as_ref().map(|_| ()).map_err(|error| error.fault);
        self.telemetry.upstream_call(&provider.settings.name, fault);
        self.note(provider, &result);
        result
    }

    /// Keeps the provider's health. Only what says something about the provider counts: not the client's own mistakes.
    fn note(&self, provider: &Provider, result: &Result<Call, UpstreamError>) {
        let news = match result {
            Ok(_) => provider.succeeded(),
            Err(error) => match error.fault {
                UpstreamFault::BadRequest | UpstreamFault::RateLimited => false,
                _ => provider.failed(),
            },
        };
        if news {
            let working = result.is_ok();
            tracing::warn!(
                provider = &*provider.settings.name,
                working,
                "provider changed state"
            );
            self.providers.mark_models();
        }
    }
}

impl Upstream for Caller {
    type Call = Call;

    async fn call(&self, exchange: &mut Exchange) -> Result<Call, UpstreamError> {
        let Some((model, api)) = exchange
            .get::<Forward>()
            .map(|forward| (forward.model.clone(), forward.api))
        else {
            return Err(fault::invalid("nothing to forward"));
        };
        // One provider for now: the first. Failing over to the next one belongs here, since nothing has been sent to the client.
        let Some(at) = model.providers.iter().find(|at| at.apis.has(api)) else {
            return Err(fault::unreachable("the model has no provider"));
        };
        self.call_provider(exchange, at).await
    }
}

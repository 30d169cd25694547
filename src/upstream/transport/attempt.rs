//! One attempt of a call at one provider: a connection, the request on it, the head of the answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::call::Call;
use super::connections::Connections;
use super::endpoint::Endpoint;
use super::fault;
use super::http_exchange::{read_error, send_request};
use super::request::{AttemptError, Delivery, ProviderRequest, connect_error};
use crate::upstream::wait::within;

/// A stale pooled connection reports the provider's close within this time after a request was written to it.
const STALE_DETECTED_WITHIN: Duration = Duration::from_secs(1);

impl Connections {
    /// Calls a provider, a second time on a new connection if a pooled one turns out to be closed. Adds to `calls` the number of tries.
    pub(in crate::upstream) async fn attempt(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        request: &ProviderRequest,
        calls: &mut u32,
    ) -> Result<Call, AttemptError> {
        let mut fresh = false;
        loop {
            *calls += 1;
            let mut failed = match self.try_once(endpoint, request, fresh).await {
                Ok(call) => return Ok(call),
                Err(failed) => failed,
            };
            if failed.delivery == Delivery::Refused {
                if self.clock.elapsed().saturating_sub(request.started) >= STALE_DETECTED_WITHIN {
                    // A connection that breaks so late was not stale: the provider may be processing the request.
                    failed.delivery = Delivery::Unknown;
                } else if !fresh {
                    fresh = true;
                    continue;
                }
            }
            return Err(failed);
        }
    }

    /// Calls once on one connection; a new one if `fresh`.
    async fn try_once(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        request: &ProviderRequest,
        fresh: bool,
    ) -> Result<Call, AttemptError> {
        let timeouts = &endpoint.settings.timeouts;
        let peer = match within(timeouts.connect, pin!(endpoint.peer())).await {
            Ok(Ok(peer)) => peer,
            Ok(Err(error)) => return Err(connect_error(fault::unreachable(error))),
            Err(_) => {
                return Err(connect_error(fault::timeout(
                    "the provider's address",
                    timeouts.connect,
                )));
            }
        };
        let first_byte = if request.stream {
            timeouts.first_byte
        } else {
            timeouts.first_byte_whole
        }
        .min(request.deadline.saturating_sub(request.started));
        let (mut link, reused) = if endpoint.needs_connector() {
            Box::pin(self.connect_pooled(&peer, timeouts.connect, fresh)).await?
        } else {
            self.connect_plain(endpoint, &peer, request.started, fresh)
                .await?
        };
        let answered = within(
            first_byte,
            pin!(send_request(&mut link, endpoint, request, reused)),
        )
        .await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(failed)) => return Err(failed),
            Err(_) => return Err(fault::timeout("the first byte", first_byte).into()),
        };
        if answer.status != StatusCode::OK {
            let body = Box::pin(read_error(&mut link)).await;
            let wait = answer
                .retry_after
                .map(|wait| wait.wait_from(self.clock.now()));
            let wait = wait.map(|wait| wait.min(endpoint.settings.health.retry_after_max));
            let key = endpoint.settings.api_key.as_ref();
            return Err(AttemptError {
                status: Some(answer.status.as_u16()),
                retry_after: wait,
                ..fault::of_status(answer.status, wait, &body, key).into()
            });
        }
        if answer.is_encoded {
            return Err(fault::invalid("the answer is compressed, which was not requested").into());
        }
        Ok(Call {
            link,
            connections: self.clone(),
            pool_index: endpoint.index,
            idle_max: endpoint.settings.connections_idle_max,
            silence_max: timeouts.between_bytes,
            clock: self.clock.clone(),
            is_stream: answer.is_stream,
            deadline: request.deadline,
            waiting_since: None,
            read_at: request.started,
        })
    }
}

//! One attempt of a call at one provider: a connection, the request, the head of the answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tollgate_openai::ProviderError;

use super::call::{Beginning, Call};
use super::connections::Connections;
use super::endpoint::Endpoint;
use super::fault;
use super::http_exchange::{read_error, send_request};
use super::pool::STALE_DETECTED_WITHIN;
use super::request::{AttemptError, Delivery, ProviderRequest, connect_error};
use crate::upstream::wait::within;

impl Connections {
    /// Calls a provider, a second time on a new connection if a pooled one turns out to be closed. Adds to `calls` the number of tries.
    pub(in crate::upstream) async fn attempt(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        request: &ProviderRequest,
        calls: &mut u32,
    ) -> Result<Call, AttemptError> {
        let (mut now, mut fresh) = (request.started, false);
        loop {
            *calls += 1;
            let mut failed = match self.try_once(endpoint, request, now, fresh).await {
                Ok(call) => return Ok(call),
                Err(failed) => failed,
            };
            if failed.delivery == Delivery::Refused {
                let started = std::mem::replace(&mut now, self.clock.elapsed());
                if now.saturating_sub(started) >= STALE_DETECTED_WITHIN {
                    failed.delivery = Delivery::Unknown;
                } else if !fresh {
                    fresh = true;
                    continue;
                }
            }
            return Err(failed);
        }
    }

    /// Calls once on one connection; with `fresh`, a new connection. Every wait ends with the time of the call.
    async fn try_once(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        request: &ProviderRequest,
        now: Duration,
        fresh: bool,
    ) -> Result<Call, AttemptError> {
        let timeouts = &endpoint.settings.timeouts;
        let limit = timeouts.connect.min(request.time_left(now));
        let (mut link, reused) = match within(limit, pin!(self.link(endpoint, now, fresh))).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return Err(connect_error(error)),
            Err(_) => {
                let error = fault::timeout("a connection", limit);
                // A call with little time left is no evidence about its provider.
                return Err(match limit < timeouts.connect {
                    true => error.into(),
                    false => connect_error(error),
                });
            }
        };
        let sent_at = if reused { now } else { self.clock.elapsed() };
        let first_byte = if request.stream {
            timeouts.first_byte
        } else {
            timeouts.first_byte_whole
        };
        let limit = first_byte.min(request.time_left(sent_at));
        let answered = within(
            limit,
            pin!(send_request(&mut link, endpoint, request, reused)),
        )
        .await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(failed)) => return Err(failed),
            Err(_) => return Err(fault::timeout("the first byte", limit).into()),
        };
        if answer.status != StatusCode::OK {
            let left = request.time_left(self.clock.elapsed());
            let body = Box::pin(read_error(&mut link, left)).await;
            let wait = answer
                .retry_after
                .map(|wait| wait.wait_from(self.clock.now()))
                .or_else(|| ProviderError::read(&body).retry_delay);
            let wait = wait.map(|wait| wait.min(endpoint.settings.health.retry_after_max));
            let key = endpoint.settings.api_key.as_ref();
            return Err(fault::of_status(answer.status, wait, &body, key));
        }
        if answer.is_encoded {
            return Err(fault::invalid("the answer is compressed, which was not requested").into());
        }
        Ok(Call {
            link,
            connections: self.clone(),
            pool_index: endpoint.index,
            idle_max: endpoint.settings.connections_idle_max,
            beginning: Beginning::awaited(first_byte),
            silence_max: timeouts.between_bytes,
            clock: self.clock.clone(),
            is_stream: answer.is_stream,
            deadline: request.deadline,
            waiting_since: Some(sent_at),
            read_at: request.started,
        })
    }
}

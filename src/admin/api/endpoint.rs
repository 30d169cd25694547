//! An endpoint of the admin API: the view of an operation.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use schemars::JsonSchema;
use serde::Serialize;
use tollgate_filter::ApiError;

use super::call::{Call, json};
use super::route::MakeSchema;
pub(in crate::admin) use super::route::Route;
use super::state::ApiState;

/// A closure that makes the schema of a message.
macro_rules! schema {
    ($message:ty) => {
        |generator| generator.subschema_for::<$message>()
    };
}
pub(in crate::admin) use schema;

/// An operation as an endpoint of the admin API.
pub(in crate::admin) trait Endpoint {
    /// The message of success.
    type Answer: Serialize + JsonSchema + Send;

    /// The route of the endpoint.
    const ROUTE: Route;

    /// Answers a permitted request.
    fn answer(
        api: &ApiState,
        call: &Call<'_>,
    ) -> impl Future<Output = Result<Self::Answer, ApiError>> + Send;
}

type AnswerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, ApiError>> + Send + 'a>>;

/// An endpoint of any type.
pub(in crate::admin) struct ListedEndpoint {
    pub(super) route: Route,
    pub(super) answer: for<'a> fn(&'a ApiState, &'a Call<'a>) -> AnswerFuture<'a>,
    pub(super) schema: MakeSchema,
}

impl ListedEndpoint {
    pub(in crate::admin) const fn of<E: Endpoint>() -> ListedEndpoint {
        ListedEndpoint {
            route: E::ROUTE,
            answer: |api, call| {
                Box::pin(async move {
                    let answer = E::answer(api, call).await?;
                    Ok(json(E::ROUTE.status, &answer))
                })
            },
            schema: schema!(E::Answer),
        }
    }
}

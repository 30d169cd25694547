#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod access;
mod address;
mod before_charge;
mod catalog;
mod document;
mod ending;
mod error;
mod error_page;
mod event;
mod exchange;
mod filter;
mod filter_code;
mod forward;
pub mod gzip;
mod log_fields;
mod payment;
mod principal;
mod progress;
mod record;
mod relay;
mod reply;
mod route_list;
mod service;
pub mod settings;
mod shared;
mod slots;
mod time;
mod unambiguous;

use tollgate_service::{GATEWAY, provided};

pub use access::{AccessError, RequiredAccess};
pub use address::{AddressPrefix, ClientAddress};
pub use before_charge::{BeforeCharge, Estimated};
pub use catalog::{
    AfterLeaving, Api, Apis, Catalog, Choice, Model, ModelLimits, PartCeilings, ProviderModel,
    Routing,
};
pub use document::Document;
pub use ending::{Ending, UpstreamFault};
pub use error::{ApiError, CODES, Credits, ErrorCode, ErrorShape, ErrorType};
pub use error_page::ErrorPage;
pub use event::{Disposition, Event, EventKind, HeldEvent, Tail};
pub use exchange::{Exchange, OldTls, Protocol, Request};
pub use filter::{Body, Contract, FailureMode, Filter, FilterError, Outcome, Phase, Phases, Step};
pub use filter_code::FilterCode;
pub use forward::{CapMember, Clamped, Forward, ForwardBody, OutputCap, Prompts};
pub use log_fields::{LogField, LogFields, LogValue};
pub use payment::{PaymentCredential, PaymentField};
pub use principal::{
    CacheSharing, CredentialCheck, CredentialKind, ModelAccess, Principal, Resource, Resources,
    Scope, Scopes,
};
pub use progress::{
    AnswerCopy, AnswerFault, AnswerIdentity, AnswerProgress, AnswerUsage, Tokens, Unfit,
};
pub use record::{CacheEntryId, CacheStatus, Charge, NoCacheEntryId, Record};
pub use relay::{Relay, RelayUpstream, RelayUpstreams, RelayedHead, end_to_end};
pub use reply::{DeferredHeaders, Reply, ReplyBody};
pub use route_list::{RouteFacts, RouteLifecycle, RouteList};
pub use service::ServiceIdentity;
pub use shared::{
    BrandName, ConsentCheckbox, CreditsStep, HitPrice, HoldLifetime, MemoryLimit, OfferedResources,
    PaymentAsset, PaymentPaths, RateClass, RateClasses, RefundUrl, SignupGrant, UncachedModels,
    Unpaid,
};
pub use unambiguous::Unambiguous;

provided! {
    GATEWAY => [Catalog, MemoryLimit, RouteList, ServiceIdentity, UncachedModels, settings::CallTimeouts];
    "pages" => [BrandName];
    "purchase" => [SignupGrant];
    "rate-limit" => [RateClasses];
    "cache" => [HitPrice];
    "meter" => [HoldLifetime];
    "commerce" => [RefundUrl];
    "mcp" => [OfferedResources, RelayUpstreams];
    "oauth" => [ConsentCheckbox, CreditsStep];
    "pay" => [PaymentAsset, PaymentPaths];
}

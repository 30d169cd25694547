#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

use std::sync::Arc;

/// A type that one module provides: itself where it can be cloned, or in an `Arc`.
pub trait Provided: Send + Sync + 'static {
    /// The name of the module that provides it.
    const PROVIDER: &'static str;
}

/// A value that one module provides and others use: a [`Provided`] type, or an `Arc` or an `Option` of one. Cheap to clone.
pub trait Service: Clone + Send + Sync + 'static {
    /// The name of the module that provides it.
    const PROVIDER: &'static str;
}

impl<T: Provided + Clone> Service for T {
    const PROVIDER: &'static str = T::PROVIDER;
}

impl<T: Provided + ?Sized> Service for Arc<T> {
    const PROVIDER: &'static str = T::PROVIDER;
}

/// A value that may be absent although its provider is there, such as the settings of a section that is not written.
impl<T: Provided + Clone> Service for Option<T> {
    const PROVIDER: &'static str = T::PROVIDER;
}

/// The name of the gateway, which provides settings and shared state before any module is built.
pub const GATEWAY: &str = "gateway";

/// Declares the provider of types, as `"module" => [Type, ...];`.
#[macro_export]
macro_rules! provided {
    ($($provider:expr => [$($service:ty),+ $(,)?];)+) => {
        $($(impl $crate::Provided for $service {
            const PROVIDER: &'static str = $provider;
        })+)+
    };
}

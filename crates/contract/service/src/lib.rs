#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

use std::sync::Arc;

/// A type that a module provides: the type where the type can be cloned, or an `Arc` of the type.
pub trait Provided: Send + Sync + 'static {
    /// The name of the providing module.
    const PROVIDER: &'static str;
}

/// A value that a module provides for other modules. The value is a [`Provided`] type, or an `Arc` or an `Option` of a `Provided` type.
/// Cheap to clone.
pub trait Service: Clone + Send + Sync + 'static {
    /// The name of the providing module.
    const PROVIDER: &'static str;
}

impl<T: Provided + Clone> Service for T {
    const PROVIDER: &'static str = T::PROVIDER;
}

impl<T: Provided + ?Sized> Service for Arc<T> {
    const PROVIDER: &'static str = T::PROVIDER;
}

/// An absent value of an existing provider, such as the settings of a section that is not written.
impl<T: Provided + Clone> Service for Option<T> {
    const PROVIDER: &'static str = T::PROVIDER;
}

/// The name of the gateway, which provides settings and shared state before the build of any module.
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

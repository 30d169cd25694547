//! The module `onboarding`: the documents for programs and people.

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_module::{Build, BuildError, FilterType, GATEWAY, Module, SectionType, provided};

use crate::config::RawOnboarding;
use crate::{Documents, Installation, Onboarding, OnboardingSettings};

provided! {
    "onboarding" => [OnboardingSettings];
    GATEWAY => [Installation];
}

/// The onboarding documents.
pub struct OnboardingModule;

impl Module for OnboardingModule {
    fn name(&self) -> &'static str {
        "onboarding"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("onboarding")]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawOnboarding>()]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: OnboardingSettings = build.get()?;
        let installation: Installation = build.get()?;
        let clock: Clock = build.get()?;
        let documents = Documents::new(&settings, &installation, clock.now());
        let documents = Arc::new(documents.map_err(BuildError::of)?);
        build.filter("onboarding", move |route| {
            let filter = Onboarding::new(&documents, route.path);
            Ok(Arc::new(filter.map_err(BuildError::of)?))
        });
        Ok(())
    }
}

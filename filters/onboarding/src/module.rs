//! The module `onboarding`: the documents for programs and people.

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, SectionType, Services, Snapshot, provided,
};

use crate::config::RawOnboarding;
use crate::installation::NAME;
use crate::{Documents, Installation, Onboarding, OnboardingSettings};

provided! { NAME => [OnboardingSettings, Documents]; }

/// The onboarding documents.
pub struct OnboardingModule;

impl Module for OnboardingModule {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("onboarding")]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawOnboarding>()]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let documents = documents(&build.get()?, build.services())?;
        let documents = Snapshot::from(documents);
        build.provide(documents.clone());
        build.filter("onboarding", move |route| {
            let filter = Onboarding::new(&documents, route.path);
            Ok(Arc::new(filter.map_err(BuildError::of)?))
        });
        Ok(())
    }

    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let snapshot: Snapshot<Documents> = running.get(NAME)?;
        let documents = documents(&settings.get(NAME)?, settings)?;
        Ok(Reload::ready(move || snapshot.replace(documents)))
    }
}

/// The documents of these settings, at the present time.
fn documents(settings: &OnboardingSettings, services: &Services) -> Result<Documents, BuildError> {
    let clock: Clock = services.get(NAME)?;
    let installation = Installation::of(services)?;
    Documents::new(settings, &installation, clock.now()).map_err(BuildError::of)
}

#[cfg(test)]
mod tests {
    use tollgate_filter::{OfferedResources, RateClasses, Resources, RouteList, ServiceIdentity};
    use tollgate_identity::signin::CodeChannels;
    use tollgate_module::{Built, Section, check_text};
    use tollgate_purchase::plan::PlanProtocols;

    use super::*;
    use crate::documents::tests::plan;

    fn settings(text: &str, mut services: Services) -> Services {
        services.provide(ServiceIdentity {
            name: "svc".to_owned(),
            base_url: "https://svc.example".to_owned(),
            root_url: "https://svc.example".to_owned(),
        });
        let checked = check_text::<RawOnboarding>(text, &services).expect("good settings");
        RawOnboarding::provide(checked, &mut services);
        services
    }

    #[test]
    fn a_reload_changes_the_documents_or_nothing() {
        let mut built = Built::default();
        built.services = settings("", Services::default());
        built.services.provide(Clock::system());
        built.services.provide(RouteList::default());
        built.services.provide(plan());
        built.services.provide(RateClasses::default());
        built.services.provide(PlanProtocols::ALL);
        built.services.provide(OfferedResources(Resources::API));
        built.services.provide(CodeChannels {
            email: true,
            phone: false,
        });
        built
            .module(&OnboardingModule)
            .expect("it has all services");
        let documents: Snapshot<Documents> = built.services.find().expect("the documents");
        let reload = |text: &str| {
            let settings = settings(text, built.services.clone());
            OnboardingModule.reload(&built.services, &settings)
        };
        let is_titled = |title: &str| {
            let documents = documents.load();
            let text = documents.find("/llms.txt").expect("a document").body();
            text.starts_with(format!("# {title}\n").as_bytes())
        };
        assert!(is_titled("svc"));
        let prepared = reload("service = 'Other'").expect("good");
        assert!(is_titled("svc"), "nothing changes before the call");
        assert_eq!(prepared.apply(), Ok(()));
        assert!(is_titled("Other"));
        let expired =
            "[security]\ncontact = 'mailto:a@svc.example'\nexpires = '2020-01-01T00:00:00Z'";
        reload(expired).expect_err("the contact has expired");
        assert!(is_titled("Other"));
    }
}

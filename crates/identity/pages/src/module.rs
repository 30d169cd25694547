//! The module `pages`: the renderer of all pages, built from `[brand]`.

use std::sync::Arc;

use tollgate_module::{Build, BuildError, Module, Reload, SectionType, Services, provided};

use crate::brand::Brand;
use crate::config::RawBrand;
use crate::renderer::PageRenderer;

const NAME: &str = "pages";

provided! { NAME => [Brand, PageRenderer]; }

/// The renderer of all pages.
pub struct PagesModule;

impl Module for PagesModule {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawBrand>()]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let brand: Brand = build.get()?;
        build.provide(Arc::new(PageRenderer::new(brand)));
        Ok(())
    }

    /// The name and the legal links need a restart: messages with codes and the checkouts of platforms have copied them.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let renderer: Arc<PageRenderer> = running.get(NAME)?;
        let brand: Brand = settings.get(NAME)?;
        let old = renderer.brand();
        let refused = Reload::refused([
            ("name", old.name != brand.name),
            ("terms_url", old.terms_url != brand.terms_url),
            ("privacy_url", old.privacy_url != brand.privacy_url),
        ]);
        drop(old);
        Ok(refused.unwrap_or_else(|| Reload::ready(move || renderer.replace(brand))))
    }
}

#[cfg(test)]
mod tests {
    use tollgate_filter::ServiceIdentity;
    use tollgate_module::{Built, Section, check_text};

    use super::*;

    fn settings(text: &str) -> Services {
        let mut services = Services::default();
        services.provide(ServiceIdentity {
            name: "svc".to_owned(),
            base_url: "https://svc.example".to_owned(),
            root_url: "https://svc.example".to_owned(),
        });
        let brand = check_text::<RawBrand>(text, &services).expect("a brand");
        RawBrand::provide(brand, &mut services);
        services
    }

    #[test]
    fn a_reload_changes_the_brand_of_the_next_page_but_not_its_name() {
        let mut built = Built::default();
        built.services = settings("accent = '#2b4eff'");
        built.module(&PagesModule).expect("it has its brand");
        let renderer: Arc<PageRenderer> = built.services.find().expect("the renderer");
        let reload = |text: &str| {
            let reload = PagesModule.reload(&built.services, &settings(text));
            reload.expect("everything is there").apply()
        };
        let help = "support = 'help@svc.example'";
        assert_eq!(reload(help), Ok(()));
        let support = renderer.brand().support.clone();
        assert_eq!(support.as_deref(), Some("help@svc.example"));
        let terms = "terms_url = 'https://svc.example/terms'";
        for (fixed, key) in [("name = 'Other'", "name"), (terms, "terms_url")] {
            assert_eq!(reload(fixed), Err(vec![key]), "{fixed}");
        }
        assert!(renderer.brand().support.is_some(), "nothing has changed");
    }
}

//! Sections of the settings file that belong to modules: read, checked and provided by type.

use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use tollgate_filter::settings::{At, Problem, Problems};
use tollgate_service::Service;
use toml::Spanned;
use toml::de::DeTable;

use crate::context::{Inputs, NoInputs, SectionContext};
use crate::filter_type::FilterType;
use crate::route_change::RouteChange;
use crate::services::Services;

/// A section as written. The fields are [`At`] values, all optional; the comments are the descriptions in the JSON Schema.
pub trait Section: DeserializeOwned + JsonSchema + Default + 'static {
    /// The section's name in the file: `idempotency`, or `filter.NAME` for a filter of another program.
    const NAME: &'static str;

    /// The checked settings, a service for the module.
    type Settings: Service + fmt::Debug;

    /// The checked settings, or `None` after noting every problem of the settings.
    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<Self::Settings>;

    /// Makes the checked settings a service, with the facts that later sections and modules need.
    fn provide(settings: Self::Settings, services: &mut Services) {
        services.provide(settings);
    }
}

/// A [`Section`] without its type: the data needed to read the file.
#[derive(Clone, Copy)]
pub struct SectionType {
    name: &'static str,
    schema: fn(&mut SchemaGenerator) -> Schema,
    read: ReadSection,
}

type ReadSection =
    fn(Spanned<DeTable<'_>>, (&Services, &dyn Inputs), &mut Problems) -> Option<CheckedSection>;

impl SectionType {
    /// The section of the type.
    pub const fn of<S: Section>() -> SectionType {
        SectionType {
            name: S::NAME,
            schema: |generator| generator.subschema_for::<S>(),
            read: read::<S>,
        }
    }

    /// The section's name in the file.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The section's JSON Schema.
    pub fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        (self.schema)(generator)
    }

    /// Reads and checks the section with the settings that were checked before; `None` after noting every problem. Positions in the table
    /// are positions in the file.
    pub fn read(
        &self,
        table: Spanned<DeTable<'_>>,
        checked: &Services,
        inputs: &dyn Inputs,
        problems: &mut Problems,
    ) -> Option<CheckedSection> {
        (self.read)(table, (checked, inputs), problems)
    }
}

impl fmt::Debug for SectionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SectionType").field(&self.name).finish()
    }
}

/// The checked settings of a section.
#[derive(Clone)]
pub struct CheckedSection {
    provide: Arc<dyn Fn(&mut Services) + Send + Sync>,
    debug: Arc<dyn fmt::Debug + Send + Sync>,
}

impl CheckedSection {
    /// Makes the settings a service.
    pub fn provide(&self, services: &mut Services) {
        (self.provide)(services);
    }
}

impl fmt::Debug for CheckedSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.debug.fmt(f)
    }
}

fn read<S: Section>(
    table: Spanned<DeTable<'_>>,
    (checked, inputs): (&Services, &dyn Inputs),
    problems: &mut Problems,
) -> Option<CheckedSection> {
    let raw = match S::deserialize(toml::de::Deserializer::from(table)) {
        Ok(raw) => raw,
        Err(error) => {
            // Constraints that the schema does not contain, such as the range of an integer type.
            let at = At {
                value: (),
                span: error.span(),
            };
            problems.note(S::NAME, &at, error.message().trim());
            return None;
        }
    };
    let context = SectionContext::new(S::NAME, checked, inputs);
    let settings = raw.check(&context, problems)?;
    Some(CheckedSection {
        debug: Arc::new(settings.clone()),
        provide: Arc::new(move |services| S::provide(settings.clone(), services)),
    })
}

/// Reads and checks the text of a single section, with the settings that were checked before. For tests of sections.
///
/// # Errors
///
/// Every problem.
///
/// # Panics
///
/// The text is not TOML, or has keys of another section.
pub fn check_text<S: Section>(text: &str, checked: &Services) -> Result<S::Settings, Vec<Problem>> {
    let raw = toml::from_str::<S>(text).expect("TOML of the section");
    let mut problems = Problems::default();
    let settings = raw.check(
        &SectionContext::new(S::NAME, checked, &NoInputs),
        &mut problems,
    );
    let found = problems.into_vec();
    settings.filter(|_| found.is_empty()).ok_or(found)
}

/// The declarations of modules and program to the settings: the filters that chains may name, sections and routes.
#[derive(Clone, Debug, Default)]
pub struct Declarations {
    /// The filters, with their order constraints.
    pub filters: Vec<FilterType>,
    /// The sections.
    pub sections: Vec<SectionType>,
    /// Routes of the program, added to the route table.
    pub routes: Vec<RouteChange>,
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::provided;

    #[derive(Debug, Default, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct RawHours {
        /// The hour of opening. 0 to 23, default 8.
        opens: Option<At<u64>>,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Hours {
        opens: u64,
    }

    provided! { "hours" => [Hours]; }

    impl Section for RawHours {
        const NAME: &'static str = "filter.hours";
        type Settings = Hours;

        fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<Hours> {
            let opens = match &self.opens {
                Some(at) => problems.within(context.key("opens"), at, 0..=23)?,
                None => 8,
            };
            Some(Hours { opens })
        }
    }

    fn read(text: &str) -> Result<Option<Hours>, String> {
        let table = DeTable::parse(text).expect("TOML");
        let mut problems = Problems::default();
        let checked = SectionType::of::<RawHours>().read(
            table,
            &Services::default(),
            &NoInputs,
            &mut problems,
        );
        let mut services = Services::default();
        if let Some(checked) = checked {
            checked.provide(&mut services);
        }
        match problems.into_vec().first() {
            Some(problem) => Err(problem.to_string()),
            None => Ok(services.find()),
        }
    }

    #[test]
    fn checked_settings_are_a_service() {
        assert_eq!(read(""), Ok(Some(Hours { opens: 8 })));
        assert_eq!(read("opens = 6"), Ok(Some(Hours { opens: 6 })));
        let problem = "filter.hours.opens: is 24; use 0 to 23";
        assert_eq!(read("opens = 24"), Err(problem.to_owned()));
    }
}

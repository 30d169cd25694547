//! Request members that a model's providers refuse or remove.

use tollgate_filter::{Catalog, Model, ProviderModel};
use tollgate_openai::{CompletionRequest, is_same_but_for_case};

/// The combined member settings of the providers that may serve a model.
pub(crate) struct Members {
    /// Refused by any of the providers: the accepted members do not depend on the chosen provider.
    refused: Box<[Box<str>]>,
    /// Removed by every provider: no model reads the member.
    removed: Box<[Box<str>]>,
}

impl Members {
    /// The members of a model in a catalog. Any provider of the model or of the model's fallback models may serve the model.
    pub(crate) fn of(model: &Model, catalog: &Catalog) -> Members {
        let instead = model.routing.fallback.iter();
        let instead = instead
            .filter_map(|id| catalog.get(id))
            .map(|model| &**model);
        let places: Vec<&ProviderModel> = std::iter::once(model)
            .chain(instead)
            .flat_map(|model| &model.providers)
            .collect();
        let refused = places.iter().flat_map(|place| &*place.refused_members);
        let removed = places
            .first()
            .map_or(&[][..], |place| &*place.removed_members);
        let by_all = |name: &str| {
            let by = |place: &&ProviderModel| has(&place.removed_members, name);
            places.iter().all(by)
        };
        Members {
            refused: distinct(refused),
            removed: removed
                .iter()
                .filter(|name| by_all(name))
                .cloned()
                .collect(),
        }
    }

    /// The first refused member of a request, as the client spelled it. `body` is the request's body.
    pub(crate) fn refused_in(&self, request: &CompletionRequest, body: &[u8]) -> Option<String> {
        if self.refused.is_empty() {
            return None;
        }
        request.find_member(body, &self.refused)
    }

    /// Excludes members that no provider gets from the request's hold.
    pub(crate) fn leave_out(&self, request: &mut CompletionRequest, body: &[u8]) {
        if !self.removed.is_empty() {
            request.leave_out(body, &self.removed);
        }
    }
}

/// The names of members that some provider in the catalog removes or refuses, without duplicates.
pub(crate) fn listed(catalog: &Catalog) -> Box<[Box<str>]> {
    let places = catalog.models().iter().flat_map(|model| &model.providers);
    distinct(places.flat_map(|place| place.removed_members.iter().chain(&*place.refused_members)))
}

fn distinct<'n>(names: impl Iterator<Item = &'n Box<str>>) -> Box<[Box<str>]> {
    let mut distinct: Vec<Box<str>> = Vec::new();
    for name in names {
        if !has(&distinct, name) {
            distinct.push(name.clone());
        }
    }
    distinct.into()
}

fn has(names: &[Box<str>], name: &str) -> bool {
    names.iter().any(|one| is_same_but_for_case(one, name))
}

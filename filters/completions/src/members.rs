//! Request members that a model's providers refuse or remove.

use tollgate_filter::{Catalog, Model, ProviderModel};
use tollgate_openai::{CompletionRequest, is_same_but_for_case};

/// The member settings of all providers that may serve one model, combined.
pub(crate) struct Members {
    /// Refused by any of them: the accepted members do not depend on the chosen provider.
    refused: Box<[Box<str>]>,
    /// Removed by each of them: no model reads it.
    removed: Box<[Box<str>]>,
}

impl Members {
    /// The members of a model in a catalog. Any of its providers may serve it, and any of its fallback models.
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

/// The names of all members that some provider in the catalog removes or refuses, each once.
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

//! Members of a request that the providers of a model do not get.

use tollgate_filter::{Catalog, Model, ProviderModel};
use tollgate_openai::{CompletionRequest, is_same_but_for_case};

/// What the providers that may serve one model say of members, together.
pub(crate) struct Members {
    /// Refused by any of them: what a client may send does not depend on which of them is chosen.
    refused: Box<[Box<str>]>,
    /// Removed by each of them: no model reads it.
    removed: Box<[Box<str>]>,
}

impl Members {
    /// Those of a model in a catalog. Any of its providers may serve it, and any of the models that serve in its place.
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

    /// The first member of a request that is refused, as the client wrote it. `body` is what the request was read from.
    pub(crate) fn refused_in(&self, request: &CompletionRequest, body: &[u8]) -> Option<String> {
        if self.refused.is_empty() {
            return None;
        }
        request.find_member(body, &self.refused)
    }

    /// Has a request hold for nothing in members that no provider gets.
    pub(crate) fn leave_out(&self, request: &mut CompletionRequest, body: &[u8]) {
        if !self.removed.is_empty() {
            request.leave_out(body, &self.removed);
        }
    }
}

/// The names of all members that some provider in the catalog does not get, each once.
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

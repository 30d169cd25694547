//! Import cycles: strongly connected components of the graph "a file names an item of another file of its crate".

use std::collections::{BTreeMap, BTreeSet};

use crate::check;
use crate::tree::Tree;

/// More files than this do not reach each other by naming items.
const FILES_MAX: usize = 4;

/// One module: a file, or a `mod` block within one.
#[derive(Default)]
struct Module {
    parent: Option<usize>,
    /// The path of the file.
    file: String,
    /// The folder of the files of its child modules.
    folder: String,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths that its code names, `use` declarations excepted.
    paths: BTreeSet<Vec<String>>,
}

/// One name that a `use` declaration brings into scope.
struct Import {
    path: Vec<String>,
    /// `None` for `*`.
    name: Option<String>,
    is_reexport: bool,
}

/// What a path names.
#[derive(Clone, Copy)]
enum Named<'p> {
    Module(usize),
    /// An item, with the module that defines it.
    Item(usize, &'p str),
}

/// The modules of one crate; the first is its root.
struct Modules<'t> {
    tree: &'t Tree,
    list: Vec<Module>,
}

/// The graph of one crate: for each pair of files, the first item of the second that the first names.
type Edges = BTreeMap<(String, String), String>;

impl Modules<'_> {
    fn edges(tree: &Tree, root: &str) -> Edges {
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        let list = Vec::new();
        let mut modules = Modules { tree, list };
        modules.add_file(None, root.to_owned(), folder.to_owned());
        let mut edges = Edges::new();
        for (at, module) in modules.list.iter().enumerate() {
            let uses = module.imports.iter();
            let uses = uses.filter(|import| !import.is_reexport && import.name.is_some());
            for path in uses.map(|import| &import.path).chain(&module.paths) {
                if let Some(Named::Item(definer, item)) = modules.resolve(at, path, 0) {
                    let definer = &modules.list[definer].file;
                    if *definer != module.file {
                        let edge = (module.file.clone(), definer.clone());
                        edges.entry(edge).or_insert_with(|| item.to_owned());
                    }
                }
            }
        }
        edges
    }

    fn add_file(&mut self, parent: Option<usize>, file: String, folder: String) -> usize {
        let tree = self.tree;
        let code = tree.source(&file).map(|source| &source.shipped);
        let module = Module {
            parent,
            file,
            folder,
            ..Module::default()
        };
        let at = self.list.len();
        self.list.push(module);
        if let Some(code) = code {
            self.parse(at, &mut Tokens::new(code));
        }
        at
    }

    /// Reads a module up to its closing brace, or to the end of the file.
    fn parse(&mut self, at: usize, tokens: &mut Tokens<'_>) {
        let mut depth = 0;
        let mut is_public = false;
        while let Some(token) = tokens.next() {
            let next = tokens.peek(0);
            let was_public = std::mem::take(&mut is_public);
            match token {
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => depth -= 1,
                "pub" => {
                    is_public = true;
                    if next == "(" {
                        while tokens.next().is_some_and(|token| token != ")") {}
                    }
                }
                "use" if is_name(next) || ["::", "{"].contains(&next) => {
                    let module = &mut self.list[at];
                    use_tree(tokens, &[], was_public, &mut module.imports);
                }
                "mod" if depth == 0 && is_name(next) => self.parse_child(at, tokens),
                "const" | "enum" | "fn" | "static" | "struct" | "trait" | "type" | "union"
                    if depth == 0 && is_name(next) =>
                {
                    let name = if ["mut", "ref"].contains(&next) {
                        tokens.peek(1)
                    } else {
                        next
                    };
                    self.list[at].items.insert(name.to_owned());
                }
                "macro_rules" if next == "!" => {
                    let name = tokens.peek(1).to_owned();
                    self.list[at].items.insert(name);
                }
                // A field, a method, the end of a path that begins otherwise; a lifetime.
                "." | "'" | "::" if is_name(next) => {
                    tokens.next();
                }
                name if is_name(name) && depth == 0 && next == "!" && tokens.peek(1) == "{" => {
                    self.parse_macro(at, tokens);
                }
                name if is_name(name) => {
                    let mut path = vec![name.to_owned()];
                    while tokens.peek(0) == "::" && is_name(tokens.peek(1)) {
                        tokens.next();
                        path.extend(tokens.next().map(str::to_owned));
                    }
                    self.list[at].paths.insert(path);
                }
                _ => {}
            }
        }
    }

    /// Reads `! { ... }` after the name of a macro among the items of a module: what it defines is what its braces declare with a keyword,
    /// and each name that begins an entry there and is followed by its value (`Address: 20,`, `REQUESTS = "...", ...;`).
    fn parse_macro(&mut self, at: usize, tokens: &mut Tokens<'_>) {
        let from = tokens.at + 2;
        let mut depth = 0;
        let mut previous = "{";
        for index in from..tokens.list.len() {
            let token = tokens.list[index];
            let ahead = |by: usize| tokens.list.get(index + by).copied().unwrap_or_default();
            let begins = depth == 0 && is_name(token) && ["{", "}", ",", ";"].contains(&previous);
            let has_value =
                ["{", ",", ":"].contains(&ahead(1)) || (ahead(1) == "=" && ahead(2) != ">");
            if begins && has_value {
                self.list[at].items.insert(token.to_owned());
            }
            match token {
                "{" | "[" | "(" => depth += 1,
                "}" if depth == 0 => break,
                "}" | "]" | ")" => depth -= 1,
                _ => {}
            }
            previous = token;
        }
        tokens.at = from;
        self.parse(at, tokens);
    }

    /// Reads `NAME;` or `NAME { ... }` after `mod`.
    fn parse_child(&mut self, parent: usize, tokens: &mut Tokens<'_>) {
        let name = tokens.next().unwrap_or_default().to_owned();
        let base = self.list[parent].folder.clone();
        let folder = format!("{base}/{name}");
        let child = if tokens.next() == Some("{") {
            let file = self.list[parent].file.clone();
            let child = self.list.len();
            let parent = Some(parent);
            self.list.push(Module {
                parent,
                file,
                folder,
                ..Module::default()
            });
            self.parse(child, tokens);
            child
        } else {
            let nested = format!("{folder}/mod.rs");
            let file = match self.tree.text(&nested) {
                Some(_) => nested,
                None => format!("{folder}.rs"),
            };
            self.add_file(Some(parent), file, folder)
        };
        self.list[parent].children.insert(name, child);
    }

    /// What `path` names in a module of this crate, re-exports followed; `depth` ends cycles of imports.
    fn resolve<'p>(&'p self, mut at: usize, path: &'p [String], depth: u32) -> Option<Named<'p>> {
        let mut rest = path;
        while let Some((name, after)) = rest.split_first() {
            match name.as_str() {
                "crate" => at = 0,
                "self" => {}
                "super" => at = self.list[at].parent?,
                name => match self.lookup(at, name, after.is_empty(), depth)? {
                    Named::Module(child) => at = child,
                    item => return Some(item),
                },
            }
            rest = after;
        }
        Some(Named::Module(at))
    }

    /// What a name is in one module: its own first, then what it imports.
    fn lookup<'p>(
        &'p self,
        at: usize,
        name: &'p str,
        is_last: bool,
        depth: u32,
    ) -> Option<Named<'p>> {
        if depth > 6 {
            return None;
        }
        let module = &self.list[at];
        let child = module.children.get(name).map(|child| Named::Module(*child));
        if child.is_some() && !is_last {
            return child;
        }
        if module.items.contains(name) {
            return Some(Named::Item(at, name));
        }
        let named = module
            .imports
            .iter()
            .filter(|import| import.name.as_deref() == Some(name));
        let mut named = named.filter_map(|import| self.resolve(at, &import.path, depth + 1));
        if let Some(found) = named.next() {
            return Some(found);
        }
        if child.is_some() {
            return child;
        }
        let globs = module.imports.iter().filter(|import| import.name.is_none());
        let mut globs =
            globs.filter_map(|import| match self.resolve(at, &import.path, depth + 1)? {
                Named::Module(other) if other != at => self.lookup(other, name, is_last, depth + 1),
                _ => None,
            });
        globs.next()
    }
}

/// Reads one tree of a `use` declaration, up to what follows it.
fn use_tree(
    tokens: &mut Tokens<'_>,
    prefix: &[String],
    is_reexport: bool,
    imports: &mut Vec<Import>,
) {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.next() {
        let mut name = None;
        match token {
            // Of another crate: no module has this name.
            "::" if path.is_empty() => path.push(String::new()),
            "::" => {}
            "{" => {
                while !["}", ""].contains(&tokens.peek(0)) {
                    use_tree(tokens, &path, is_reexport, imports);
                    if tokens.peek(0) == "," {
                        tokens.next();
                    }
                }
                tokens.next();
                return;
            }
            "self" if !path.is_empty() => name = path.last().cloned(),
            "*" => {
                imports.push(Import {
                    path,
                    name,
                    is_reexport,
                });
                return;
            }
            segment => {
                path.push(segment.to_owned());
                name = path.last().cloned();
            }
        }
        if name.is_none() || tokens.peek(0) == "::" {
            continue;
        }
        if tokens.peek(0) == "as" {
            tokens.next();
            name = tokens.next().map(str::to_owned);
        }
        imports.push(Import {
            path,
            name,
            is_reexport,
        });
        return;
    }
}

/// The tokens of code whose comments and literals are blanked.
struct Tokens<'c> {
    list: Vec<&'c str>,
    at: usize,
}

impl<'c> Tokens<'c> {
    fn new(code: &'c str) -> Tokens<'c> {
        let mut list = Vec::new();
        let mut rest = code.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                _ if in_name(first) => rest.find(|c| !in_name(c)).unwrap_or(rest.len()),
                _ if rest.starts_with("::") || rest.starts_with("..") => 2,
                _ => first.len_utf8(),
            };
            let (token, after) = rest.split_at(length);
            list.push(token);
            rest = after.trim_start();
        }
        Tokens { list, at: 0 }
    }

    fn next(&mut self) -> Option<&'c str> {
        self.at += 1;
        self.list.get(self.at - 1).copied()
    }

    /// The token `ahead` places on; empty past the end.
    fn peek(&self, ahead: usize) -> &'c str {
        self.list.get(self.at + ahead).copied().unwrap_or_default()
    }
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Tarjan's algorithm: the strongly connected components of more than one file.
struct Components<'e> {
    targets: BTreeMap<&'e str, Vec<&'e str>>,
    /// Number in order of the visit, and the lowest number that a file reaches.
    visited: BTreeMap<&'e str, (usize, usize)>,
    stack: Vec<&'e str>,
    found: Vec<BTreeSet<&'e str>>,
}

impl<'e> Components<'e> {
    fn of(edges: &'e Edges) -> Vec<BTreeSet<&'e str>> {
        let mut targets = BTreeMap::<&str, Vec<&str>>::new();
        for (from, to) in edges.keys() {
            targets.entry(from).or_default().push(to);
        }
        let files: Vec<_> = targets.keys().copied().collect();
        let mut components = Components {
            targets,
            visited: BTreeMap::new(),
            stack: Vec::new(),
            found: Vec::new(),
        };
        for file in files {
            if !components.visited.contains_key(file) {
                components.visit(file);
            }
        }
        components.found
    }

    /// Visits a file and what it reaches, and returns the lowest number among those on the stack.
    fn visit(&mut self, file: &'e str) -> usize {
        let number = self.visited.len();
        let depth = self.stack.len();
        let mut lowest = number;
        self.visited.insert(file, (number, number));
        self.stack.push(file);
        for target in self.targets.get(file).cloned().unwrap_or_default() {
            match self.visited.get(target) {
                None => lowest = lowest.min(self.visit(target)),
                Some((number, _)) if self.stack.contains(&target) => lowest = lowest.min(*number),
                Some(_) => {}
            }
        }
        if lowest == number {
            let component: BTreeSet<_> = self.stack.drain(depth..).collect();
            if component.len() > 1 {
                self.found.push(component);
            }
        }
        lowest
    }
}

/// The longest folder that holds all of these files.
fn common_folder(files: &BTreeSet<&str>) -> String {
    let (Some(first), Some(last)) = (files.first(), files.last()) else {
        return String::new();
    };
    // Between the first and the last in order, no other can differ earlier.
    let parts = first.split('/').zip(last.split('/'));
    let same = parts.take_while(|(a, b)| a == b).map(|(part, _)| part);
    same.collect::<Vec<_>>().join("/")
}

/// A complaint for each cycle that is too large.
fn complaints(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for manifest in tree.manifests() {
        let separator = if manifest.folder.is_empty() { "" } else { "/" };
        for root in ["src/lib.rs", "src/main.rs"] {
            let root = format!("{}{separator}{root}", manifest.folder);
            let edges = Modules::edges(tree, &root);
            for cycle in Components::of(&edges) {
                if cycle.len() <= FILES_MAX {
                    continue;
                }
                let folder = common_folder(&cycle);
                let inner = edges
                    .iter()
                    .filter(|((from, to), _)| cycle.contains(&**from) && cycle.contains(&**to));
                let lines: String = inner
                    .map(|((from, to), item)| format!("\n    {from} names {item} of {to}"))
                    .collect();
                complaints.push(format!(
                    "{folder}: a cycle of {} files, at most {FILES_MAX} may reach each other: move what both sides name to a file below both\n    {}{lines}",
                    cycle.len(),
                    cycle.iter().copied().collect::<Vec<_>>().join(" "),
                ));
            }
        }
    }
    complaints
}

#[test]
fn no_more_than_four_files_of_a_crate_name_each_other_in_a_cycle() {
    check(
        complaints,
        &[(
            "src/upstream/transport/pool.rs",
            "use crate::upstream::Caller;\npub(super) struct Pool(Caller);",
        )],
    );
}

#[test]
fn a_path_is_followed_to_the_file_that_defines_its_item() {
    let files = [
        ("a/Cargo.toml", "[package]\nname = 'a'"),
        (
            "a/src/lib.rs",
            "mod b; mod c; mod f; pub use self::c::C; mod inner { pub(crate) use crate::c::d; } use b::B as _;",
        ),
        // Through a re-export of the root.
        (
            "a/src/b.rs",
            "use crate::{C, f}; pub(crate) struct B(C, f::F);",
        ),
        // Through a module under another name, in a function.
        (
            "a/src/c/mod.rs",
            "pub(crate) mod d; mod e; pub struct C; fn c() { use super::inner::d as other; other::D::new(\"x\") }",
        ),
        // Through `super` and a glob.
        (
            "a/src/c/d.rs",
            "use super::e::*; pub(crate) struct D<'a>(&'a E);",
        ),
        (
            "a/src/c/e.rs",
            "pub(crate) struct E; impl E { fn e() -> crate::f::F { loop {} } }",
        ),
        ("a/src/f.rs", "pub(crate) enum F { A(crate::b::B) }"),
    ];
    let tree = Tree::of(&files);
    let found = complaints(&tree);
    let [cycle] = found.as_slice() else {
        panic!("one cycle: {found:?}");
    };
    for line in [
        "a/src: a cycle of 5 files",
        "a/src/b.rs names C of a/src/c/mod.rs",
        "a/src/c/mod.rs names D of a/src/c/d.rs",
        "a/src/c/d.rs names E of a/src/c/e.rs",
        "a/src/c/e.rs names F of a/src/f.rs",
        "a/src/f.rs names B of a/src/b.rs",
    ] {
        assert!(cycle.contains(line), "{line} is not in {cycle}");
    }
    for made in [
        "labels! { pub(crate) enum F { A = \"a\", } } type G = crate::b::B;",
        "bytes! { E: 20, F: 32, } type G = crate::b::B;",
        "provided! { F => [crate::b::B]; } metrics! { F = \"f\", Counter, [\"b\"], \"\"; }",
    ] {
        let open = tree.with("a/src/f.rs", made);
        let found = complaints(&open);
        assert!(found[0].starts_with("a/src: a cycle of 5 files"), "{made}");
    }
    for end in [
        "provided! { F => [crate::b::B]; }",
        "#[cfg(test)] mod tests { use crate::b::B; } pub(crate) struct F;",
        "pub(crate) use crate::b::B; pub(crate) struct F;",
    ] {
        let open = tree.with("a/src/f.rs", end);
        assert_eq!(complaints(&open), [""; 0], "{end}");
    }
}

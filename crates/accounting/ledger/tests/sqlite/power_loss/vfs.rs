//! A VFS of SQLite. The VFS passes the writes, truncations, syncs, creations and deletions of files in chosen folders to a [`Log`].
//!
//! The VFS is SQLite's default VFS with replaced functions: two functions of the VFS, and four functions of each file in a chosen folder.
//! Other files use SQLite's functions, so the VFS does not affect other tests of the process.

#![expect(
    unsafe_code,
    reason = "a VFS is a table of C functions, and a file a C structure in memory of SQLite"
)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use rusqlite::ffi;

use super::log::Log;

type OpenFile = unsafe extern "C" fn(
    *mut ffi::sqlite3_vfs,
    ffi::sqlite3_filename,
    *mut ffi::sqlite3_file,
    c_int,
    *mut c_int,
) -> c_int;
type DeleteFile = unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *const c_char, c_int) -> c_int;

/// The replaced functions of SQLite's default VFS.
struct Original {
    open: OpenFile,
    delete: DeleteFile,
}

/// The functions of a file: SQLite's functions, and the functions of a recorded file.
struct Methods {
    original: ffi::sqlite3_io_methods,
    recorded: ffi::sqlite3_io_methods,
}

/// An open recorded file.
#[derive(Clone)]
struct Recorded {
    methods: &'static Methods,
    log: Log,
    inode: usize,
    /// The file may be new: SQLite's default VFS also syncs the folder with the first sync of a new file.
    syncs_folder: bool,
}

static ORIGINAL: OnceLock<Original> = OnceLock::new();
/// By the address of SQLite's table. SQLite has one table for each way of locking.
static METHODS: Mutex<BTreeMap<usize, &Methods>> = Mutex::new(BTreeMap::new());
static FOLDERS: Mutex<Vec<(PathBuf, Log)>> = Mutex::new(Vec::new());
/// By the address of SQLite's structure.
static FILES: Mutex<BTreeMap<usize, Recorded>> = Mutex::new(BTreeMap::new());

/// Records the files of this folder from now on, when opened by SQLite.
pub(super) fn record(folder: &Path, log: Log) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(register);
    lock(&FOLDERS).push((folder.to_owned(), log));
}

/// Ends the recording of a folder. Open files are recorded until closed.
pub(super) fn stop(folder: &Path) {
    lock(&FOLDERS).retain(|(recorded, _)| recorded != folder);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

fn register() {
    // SAFETY: without a name the function returns the default VFS, which is initialized and lives as long as the process.
    let default = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()).as_ref() };
    let default = default.expect("SQLite has a default VFS");
    let original = Original {
        open: default.xOpen.expect("a VFS opens files"),
        delete: default.xDelete.expect("a VFS deletes files"),
    };
    ORIGINAL.get_or_init(|| original);
    let vfs = Box::leak(Box::new(ffi::sqlite3_vfs {
        zName: c"recording".as_ptr(),
        pNext: std::ptr::null_mut(),
        xOpen: Some(open),
        xDelete: Some(delete),
        ..*default
    }));
    // SAFETY: the structure is complete and never freed. Its functions come from a registered VFS or have the types of a VFS.
    let code = unsafe { ffi::sqlite3_vfs_register(vfs, 1) };
    assert_eq!(code, ffi::SQLITE_OK, "the VFS is registered");
}

/// The log of a path, and the file's name in its folder.
fn log_of(path: &Path) -> Option<(Log, String)> {
    let name = path.file_name()?.to_str()?.to_owned();
    let folders = lock(&FOLDERS);
    let (_, log) = folders
        .iter()
        .find(|(folder, _)| path.parent() == Some(folder))?;
    Some((log.clone(), name))
}

/// # Safety
///
/// `name` is null or ends with a zero byte.
unsafe fn path_of(name: *const c_char) -> Option<PathBuf> {
    if name.is_null() {
        return None;
    }
    // SAFETY: as required of the caller.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(name.to_str().ok()?))
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    let original = ORIGINAL.get().expect("it was registered");
    // SAFETY: SQLite passes a name that ends with a zero byte, or null for a temporary file.
    let recorded = unsafe { path_of(name) }.as_deref().and_then(log_of);
    // SAFETY: the arguments are SQLite's; the structure is as large as the original VFS asks for.
    let code = unsafe { (original.open)(vfs, name, file, flags, flags_out) };
    let Some((log, name)) = recorded.filter(|_| code == ffi::SQLITE_OK) else {
        return code;
    };
    // SAFETY: an opened file has a table of functions.
    let original = unsafe { (*file).pMethods };
    let methods = *lock(&METHODS).entry(original.addr()).or_insert_with(|| {
        // SAFETY: as above.
        let original = unsafe { *original };
        let recorded = ffi::sqlite3_io_methods {
            xClose: Some(close),
            xWrite: Some(write),
            xTruncate: Some(truncate),
            xSync: Some(sync),
            ..original
        };
        Box::leak(Box::new(Methods { original, recorded }))
    });
    // SAFETY: SQLite calls only functions of the table, and the copy of the table is never freed.
    unsafe { (*file).pMethods = &raw const methods.recorded };
    let inode = log.opened(&name);
    let opened = Recorded {
        methods,
        log,
        inode,
        syncs_folder: flags & ffi::SQLITE_OPEN_WAL != 0 && flags & ffi::SQLITE_OPEN_CREATE != 0,
    };
    lock(&FILES).insert(file.addr(), opened);
    code
}

unsafe extern "C" fn delete(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_folder: c_int,
) -> c_int {
    let original = ORIGINAL.get().expect("it was registered");
    // SAFETY: the arguments are SQLite's.
    let delete = || unsafe { (original.delete)(vfs, name, 0) };
    // SAFETY: SQLite passes a name that ends with a zero byte.
    match unsafe { path_of(name) }.as_deref().and_then(log_of) {
        Some((log, name)) => log.delete(&name, sync_folder != 0, delete),
        // SAFETY: the arguments are SQLite's.
        None => unsafe { (original.delete)(vfs, name, sync_folder) },
    }
}

fn recorded(file: *mut ffi::sqlite3_file) -> Recorded {
    let recorded = lock(&FILES).get(&file.addr()).cloned();
    recorded.expect("an open file is known")
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let original = recorded(file).methods.original;
    lock(&FILES).remove(&file.addr());
    let close = original.xClose.expect("a file is closed");
    // SAFETY: the argument is SQLite's.
    unsafe { close(file) }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    length: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    let recorded = recorded(file);
    let original = recorded.methods.original;
    let write = original.xWrite.expect("a file is written");
    let length_bytes = usize::try_from(length).expect("a length");
    // SAFETY: SQLite passes `length` bytes.
    let copy = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length_bytes) };
    let start = usize::try_from(offset).expect("an offset");
    // SAFETY: the arguments are SQLite's.
    recorded.log.write(recorded.inode, start, copy, || unsafe {
        write(file, bytes, length, offset)
    })
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    let recorded = recorded(file);
    let original = recorded.methods.original;
    let truncate = original.xTruncate.expect("a file is truncated");
    let length = usize::try_from(size).expect("a length");
    // SAFETY: the arguments are SQLite's.
    recorded
        .log
        .truncate(recorded.inode, length, || unsafe { truncate(file, size) })
}

/// Only recorded. The files after a power loss are computed, so the disk of this machine needs no sync.
unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    let recorded = recorded(file);
    recorded.log.sync(recorded.inode, recorded.syncs_folder);
    ffi::SQLITE_OK
}

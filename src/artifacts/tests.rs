use std::path::Path;

use futures::TryStreamExt as _;

use super::objects::{BucketAccess, ObjectArtifacts};
use super::*;

fn name(of: &[u8]) -> BlobName {
    BlobName { organization: Uuid::from_u128(7).into(), digest: Digest::of(of), upload: Uuid::from_u128(9) }
}

fn open(folder: &Path) -> ObjectArtifacts {
    let url = url::Url::from_file_path(folder).unwrap();
    ObjectArtifacts::open(url.as_str(), &BucketAccess::default()).unwrap()
}

async fn write(store: &ObjectArtifacts, name: BlobName, chunks: &[&[u8]]) -> Box<dyn BlobWriter> {
    let mut writer = store.writer(name);
    for chunk in chunks {
        writer.write(Bytes::copy_from_slice(chunk)).await.unwrap();
    }
    writer
}

async fn read(store: &ObjectArtifacts, name: BlobName, range: Range<u64>) -> Result<Vec<u8>, ArtifactStoreError> {
    let chunks: Vec<Bytes> = store.read(name, range).await?.try_collect().await?;
    Ok(chunks.concat())
}

/// The files below `folder`, with their sizes.
fn files(folder: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                found.push((entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()));
            }
        }
    }
    found
}

#[tokio::test]
async fn a_folder_that_is_made_is_for_nobody_else_on_the_machine() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    let fresh = folder.path().join("made/by/itself");
    open(&fresh);
    assert_eq!(mode(&fresh), 0o700);
    // One that was shared on purpose stays so.
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o750)).unwrap();
    open(&fresh);
    assert_eq!(mode(&fresh), 0o750);
}

#[tokio::test]
async fn what_was_written_is_read_in_whole_and_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("made/by/itself"));
    // More than a part, so that it is sent in several.
    let large: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    for bytes in [&b""[..], b"x", b"small", &large] {
        let name = name(bytes);
        let chunks: Vec<&[u8]> = bytes.chunks(3_000_001).collect();
        let writer = write(&store, name, &chunks).await;
        let found = read(&store, name, 0..1).await;
        assert!(matches!(found, Err(ArtifactStoreError::Missing(_))), "readable before its end");
        writer.finish().await.unwrap();
        let size = bytes.len() as u64;
        assert!(read(&store, name, 0..size).await.unwrap() == bytes);
        let middle = (size / 3)..(size - size / 4);
        let part = &bytes[usize::try_from(middle.start).unwrap()..usize::try_from(middle.end).unwrap()];
        assert!(read(&store, name, middle).await.unwrap() == part);
        store.remove(name).await.unwrap();
        assert!(matches!(read(&store, name, 0..1).await, Err(ArtifactStoreError::Missing(_))));
        store.remove(name).await.unwrap();
        assert_eq!(files(folder.path()), []);
    }
}

#[tokio::test]
async fn what_is_aborted_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let chunk = vec![7; 9_000_000];
    write(&store, name(b"a"), &[&chunk, &chunk]).await.abort().await.unwrap();
    write(&store, name(b"b"), &[b"little"]).await.abort().await.unwrap();
    assert_eq!(files(folder.path()), []);
}

#[tokio::test]
async fn what_a_process_that_was_killed_left_is_removed_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let chunk = vec![7; 9_000_000];
    let writer = write(&store, name(b"a"), &[&chunk, &chunk]).await;
    assert_eq!(files(folder.path()).len(), 1, "it is on its way");
    // Nobody runs the end of a process that was killed.
    std::mem::forget(writer);
    store.remove(name(b"a")).await.unwrap();
    assert_eq!(files(folder.path()), []);
}

#[test]
fn a_url_that_names_no_store_is_told_from_one_that_does() {
    let access = BucketAccess { region: "eu-central-1".to_owned(), ..BucketAccess::default() };
    let open = |url: &str| ObjectArtifacts::open(url, &access).map(drop);
    for wrong in ["", "folder", "ftp://host/x", "file://elsewhere/folder", "s3:", "s3://", "file:///proc/nothing/here"]
    {
        assert!(matches!(open(wrong), Err(ArtifactStoreError::Setting(_))), "{wrong}");
    }
    for right in ["s3://bucket", "s3://bucket/", "s3://bucket/some/prefix"] {
        assert!(open(right).is_ok(), "{right}");
    }
}

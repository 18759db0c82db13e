//! The known answers of the certificate-transparency project, and `ct-merkle` as an oracle.

use ct_merkle::mem_backed_tree::MemoryBackedTree;
use ct_merkle::{ConsistencyProof, InclusionProof, RootHash};
use proptest::prelude::*;

use super::*;

/// The eight leaves of certificate-transparency's `merkle_tree_test.cc`.
const LEAVES: [&[u8]; 8] = [
    b"",
    b"\x00",
    b"\x10",
    b"\x20\x21",
    b"\x30\x31",
    b"\x40\x41\x42\x43",
    b"\x50\x51\x52\x53\x54\x55\x56\x57",
    b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
];

/// The roots over the first 1, 2, … 8 of them, from the same file.
const ROOTS: [&str; 8] = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
];

fn leaves(count: u64) -> Vec<Hash> {
    (0..count).map(|n| Hash::of_leaf(&n.to_le_bytes())).collect()
}

fn root_of(leaves: &[Hash]) -> Hash {
    let mut tree = Frontier::new();
    leaves.iter().for_each(|leaf| tree.append(*leaf));
    tree.root()
}

fn head(leaves: &[Hash], size: u64) -> TreeHead {
    TreeHead { size, root: root_of(&leaves[..size as usize]) }
}

fn hashes(leaves: &[Hash], ranges: Vec<Range<u64>>) -> Vec<Hash> {
    ranges.into_iter().map(|r| root_of(&leaves[r.start as usize..r.end as usize])).collect()
}

fn shown(hashes: &[Hash]) -> Vec<String> {
    hashes.iter().map(Hash::to_string).collect()
}

fn known_leaves() -> Vec<Hash> {
    LEAVES.iter().map(|bytes| Hash::of_leaf(bytes)).collect()
}

#[test]
fn the_root_of_no_records_is_the_hash_of_nothing() {
    let known = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(Frontier::new().root().to_string(), known);
}

#[test]
fn roots_equal_the_known_answers() {
    let mut tree = Frontier::new();
    for (leaf, root) in known_leaves().into_iter().zip(ROOTS) {
        tree.append(leaf);
        assert_eq!(tree.root().to_string(), root);
    }
}

#[test]
fn inclusion_proofs_equal_the_known_answers() {
    let leaves = known_leaves();
    let path = |index, size| shown(&hashes(&leaves, inclusion_ranges(index, size).unwrap()));
    assert!(path(0, 1).is_empty());
    assert_eq!(
        path(0, 8),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ]
    );
    assert_eq!(
        path(5, 8),
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            ROOTS[3],
        ]
    );
    assert_eq!(path(2, 3), [ROOTS[1]]);
}

#[test]
fn consistency_proofs_equal_the_known_answers() {
    let leaves = known_leaves();
    let proof = |old, new| shown(&hashes(&leaves, consistency_ranges(old, new).unwrap()));
    assert!(proof(1, 1).is_empty());
    assert_eq!(
        proof(6, 8),
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            ROOTS[3],
        ]
    );
    assert_eq!(
        proof(2, 5),
        [
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ]
    );
}

#[test]
fn another_implementation_agrees_on_every_proof_up_to_forty_leaves() {
    const SIZE: u64 = 40;
    let ours = leaves(SIZE);
    for size in 1..=SIZE {
        let mut theirs = MemoryBackedTree::<Sha256, Vec<u8>>::new();
        (0..size).for_each(|n| theirs.push(n.to_le_bytes().to_vec()));
        let tree = head(&ours, size);
        assert_eq!(theirs.root().as_bytes().as_slice(), tree.root.as_bytes());
        for index in 0..size {
            let proof = hashes(&ours, inclusion_ranges(index, size).unwrap());
            let bytes: Vec<u8> = proof.iter().flat_map(|h| *h.as_bytes()).collect();
            assert_eq!(theirs.prove_inclusion(index as usize).as_bytes(), bytes);
            assert!(is_included(&ours[index as usize], index, &tree, &proof));
            let root = RootHash::<Sha256>::new((*tree.root.as_bytes()).into(), size);
            let value = index.to_le_bytes().to_vec();
            root.verify_inclusion(&value, index, &InclusionProof::from_bytes(bytes)).unwrap();
        }
        for old in 1..=size {
            let proof = hashes(&ours, consistency_ranges(old, size).unwrap());
            let bytes: Vec<u8> = proof.iter().flat_map(|h| *h.as_bytes()).collect();
            assert_eq!(theirs.prove_consistency((size - old) as usize).as_bytes(), bytes);
            assert!(is_consistent(&head(&ours, old), &tree, &proof));
            ConsistencyProof::<Sha256>::try_from_bytes(bytes).unwrap();
        }
    }
}

#[test]
fn proofs_of_what_is_not_there_are_not_made() {
    assert_eq!(inclusion_ranges(0, 0), None);
    assert_eq!(inclusion_ranges(5, 5), None);
    assert_eq!(consistency_ranges(6, 5), None);
    assert_eq!(consistency_ranges(0, 5), Some(vec![]));
}

#[test]
fn a_frontier_with_the_wrong_number_of_peaks_is_refused() {
    assert_eq!(Frontier::from_parts(3, vec![Hash::of_nothing()]), None);
    assert!(Frontier::from_parts(4, vec![Hash::of_nothing()]).is_some());
}

proptest! {
    #[test]
    fn a_changed_proof_proves_nothing(
        size in 2_u64..200,
        pick in any::<[prop::sample::Index; 3]>(),
        bit in 0_usize..256,
    ) {
        let leaves = leaves(size);
        let tree = head(&leaves, size);
        let index = pick[0].index(size as usize) as u64;
        let mut proof = hashes(&leaves, inclusion_ranges(index, size).unwrap());
        let leaf = leaves[index as usize];
        prop_assert!(is_included(&leaf, index, &tree, &proof));
        let at = pick[1].index(proof.len());
        let mut bytes = *proof[at].as_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let good = std::mem::replace(&mut proof[at], Hash::from_bytes(bytes));
        prop_assert!(!is_included(&leaf, index, &tree, &proof));
        proof[at] = good;
        for other in (0..size).filter(|other| *other != index) {
            prop_assert!(!is_included(&leaf, other, &tree, &proof));
        }
        proof.push(good);
        prop_assert!(!is_included(&leaf, index, &tree, &proof));
        proof.truncate(proof.len() - 2);
        prop_assert!(!is_included(&leaf, index, &tree, &proof));

        let old = 1 + pick[2].index(size as usize - 1) as u64;
        let old_tree = head(&leaves, old);
        let proof = hashes(&leaves, consistency_ranges(old, size).unwrap());
        prop_assert!(is_consistent(&old_tree, &tree, &proof));
        for at in 0..proof.len() {
            let mut bad = proof.clone();
            let mut bytes = *bad[at].as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bad[at] = Hash::from_bytes(bytes);
            prop_assert!(!is_consistent(&old_tree, &tree, &bad));
            let mut short = proof.clone();
            short.remove(at);
            prop_assert!(!is_consistent(&old_tree, &tree, &short));
        }
        let forged = TreeHead { size: old, root: Hash::of_nothing() };
        prop_assert!(!is_consistent(&forged, &tree, &proof));
    }
}

// Words of keys and word lists; different all, so that no two of them are the same thing.
#pragma once

namespace kvc::tool {

constexpr const char* kAdjectives[] = {
    "able",   "amber",  "ancient", "autumn",  "bitter", "black",  "blue",   "bold",    "brave",  "bright",
    "broad",  "broken", "calm",    "careful", "cheap",  "clean",  "clear",  "clever",  "cold",   "cool",
    "copper", "crisp",  "curly",   "damp",    "dark",   "deep",   "dry",    "dusty",   "eager",  "early",
    "empty",  "fair",   "famous",  "fancy",   "fast",   "fine",   "firm",   "flat",    "fresh",  "gentle",
    "giant",  "glad",   "golden",  "grand",   "gray",   "great",  "green",  "happy",   "hard",   "heavy",
    "hidden", "high",   "hollow",  "honest",  "huge",   "humble", "icy",    "jolly",   "keen",   "kind",
    "large",  "late",   "lazy",    "light",   "little", "lively", "lonely", "long",    "loud",   "lucky",
    "mellow", "mild",   "modern",  "narrow",  "neat",   "new",    "noble",  "odd",     "old",    "orange",
    "pale",   "plain",  "polite",  "proud",   "purple", "quick",  "quiet",  "rapid",   "rare",   "ready",
    "red",    "rich",   "ripe",    "rough",   "round",  "royal",  "rusty",  "salty",   "sharp",  "shiny",
    "short",  "shy",    "silent",  "silver",  "simple", "slim",   "slow",   "small",   "smart",  "smooth",
    "soft",   "solid",  "sour",    "spicy",   "steady", "steep",  "still",  "strange", "strong", "sunny",
    "sweet",  "swift",  "tall",    "tame",    "tender", "thick",  "thin",   "tidy",    "tiny",   "tough",
    "true",   "velvet", "violet",  "warm",    "weak",   "wet",    "white",  "wide",    "wild",   "wise",
    "wooden", "young"};

constexpr const char* kNouns[] = {
    "acorn",   "anchor",   "angle",   "apple",    "arrow",    "atlas",    "badge",   "bakery",  "balcony",
    "banana",  "barrel",   "basin",   "basket",   "beacon",   "beaver",   "bell",    "bench",   "berry",
    "bicycle", "blanket",  "board",   "boat",     "bonnet",   "bottle",   "boulder", "bridge",  "broom",
    "bucket",  "button",   "cabin",   "cactus",   "camel",    "candle",   "canoe",   "canyon",  "carpet",
    "castle",  "cave",     "cedar",   "chain",    "chair",    "cherry",   "chimney", "circle",  "cliff",
    "clock",   "cloud",    "coat",    "cobweb",   "comet",    "compass",  "coral",   "cottage", "cradle",
    "crane",   "crow",     "crown",   "cup",      "curtain",  "daisy",    "desert",  "desk",    "diamond",
    "dock",    "dolphin",  "donkey",  "door",     "dragon",   "drawer",   "drum",    "eagle",   "engine",
    "falcon",  "farm",     "feather", "fence",    "fern",     "ferry",    "field",   "fig",     "finch",
    "fire",    "flag",     "flute",   "forest",   "fork",     "fountain", "fox",     "frog",    "garden",
    "gate",    "ginger",   "glacier", "globe",    "glove",    "goat",     "guitar",  "hammer",  "harbor",
    "harp",    "hawk",     "hedge",   "helmet",   "heron",    "hill",     "honey",   "hook",    "horse",
    "house",   "igloo",    "island",  "ivory",    "jacket",   "jar",      "jewel",   "journal", "kettle",
    "kite",    "kitten",   "ladder",  "lake",     "lamp",     "lantern",  "lemon",   "letter",  "lily",
    "lion",    "lizard",   "lobster", "magnet",   "map",      "maple",    "marble",  "market",  "meadow",
    "mill",    "mirror",   "mitten",  "moon",     "mountain", "museum",   "nail",    "needle",  "nest",
    "night",   "notebook", "oak",     "ocean",    "olive",    "onion",    "orchard", "otter",   "owl",
    "oyster",  "paddle",   "palace",  "panther",  "paper",    "parrot",   "path",    "peach",   "pearl",
    "pebble",  "pencil",   "pepper",  "piano",    "pigeon",   "pillow",   "pine",    "planet",  "plum",
    "pocket",  "pond",     "poppy",   "potato",   "prairie",  "pumpkin",  "quill",   "rabbit",  "raft",
    "rain",    "raven",    "reef",    "ribbon",   "river",    "robin",    "rocket",  "roof",    "rope",
    "rose",    "saddle",   "sail",    "salmon",   "sand",     "sandal",   "scarf",   "school",  "shell",
    "shield",  "ship",     "shovel",  "sky",      "sled",     "snail",    "snow",    "sofa",    "spear",
    "spider",  "spoon",    "spring",  "squirrel", "stable",   "star",     "statue",  "stone",   "stove",
    "street",  "sugar",    "swan",    "sword",    "table",    "teapot",   "temple",  "tent",    "thimble",
    "tiger",   "tower",    "trail",   "train",    "tree",     "trumpet",  "tulip",   "tunnel",  "turtle",
    "valley",  "vase",     "village", "violin",   "wagon",    "wall",     "walnut",  "water",   "well",
    "whale",   "wheel",    "whistle", "willow",   "window",   "wolf",     "wren",    "yacht",   "zebra"};

}  // namespace kvc::tool

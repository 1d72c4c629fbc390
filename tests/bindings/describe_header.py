#!/usr/bin/env python3
"""Writes a C++ program that writes down what C headers say, as the compiler understands them: the oracle of bindings
whose flat layer is generated. describe_header.py OUT.cc HEADER.h... [-I FOLDER]... [--entries GLUE.c]; the program is
called with the file that it is to write. Names are read here; types, values, sizes and offsets are asked of the
compiler. One line each:

  constant NAME VALUE
  field STRUCT NAME TYPE OFFSET
  struct NAME SIZE              behind its fields, which cover it without a gap, else the program fails
  function NAME RETURNED TYPE...
  entry NAME RETURNED TYPE...   a function that GLUE.c exports

TYPE is int32, int64, uint8, float32, float64, char, void, function or the name of a struct, with a * before it for
each pointer; a kvc_status that is returned is "status". Const is not told."""
import argparse
import os
import re

PROGRAM = """\
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
{includes}
template <class T>
std::string number() {{
  if (std::is_same<T, char>::value) return "char";
  std::string bits = std::to_string(8 * sizeof(T));
  if (std::is_floating_point<T>::value) return "float" + bits;
  return (std::is_signed<T>::value ? "int" : "uint") + bits;
}}
// What is neither a number nor named below does not compile.
template <class T>
struct Type {{
  static_assert(std::is_arithmetic<T>::value, "a type without a name");
  static std::string text() {{ return number<T>(); }}
}};
template <class T>
struct Type<const T> : Type<T> {{}};
template <class T>
struct Type<T*> {{
  static std::string text() {{ return "*" + Type<T>::text(); }}
}};
template <class T>
struct Type<T* const> : Type<T*> {{}};
template <class T>
struct Type<T[]> : Type<T> {{}};
template <class R, class... A>
struct Type<R(A...)> {{
  static std::string text() {{ return "function"; }}
}};
#define NAMED(T, name) \\
  template <>          \\
  struct Type<T> {{ static std::string text() {{ return name; }} }};
NAMED(void, "void")
{named}
template <class T>
struct Signature;
template <class R, class... A>
struct Signature<R(A...)> {{
  static std::string text(bool status) {{
    std::string line = status ? "status" : Type<R>::text();
    for (const std::string& type : {{std::string(), Type<A>::text()...}}) line += type.empty() ? "" : " " + type;
    return line;
  }}
}};

// An array at the end without a count has no size.
template <class T>
struct SizeOf {{ static const std::size_t value = sizeof(T); }};
template <class T>
struct SizeOf<T[]> {{ static const std::size_t value = 0; }};

static std::FILE* out;
static std::size_t end_of_fields;
static bool gaps;

static void print_field(const char* of, const char* name, const std::string& type, std::size_t at, std::size_t size) {{
  if (at != end_of_fields) gaps = true, std::fprintf(stderr, "a gap before %s.%s\\n", of, name);
  end_of_fields = at + size;
  std::fprintf(out, "field %s %s %s %zu\\n", of, name, type.c_str(), at);
}}

static void print_struct(const char* name, std::size_t size) {{
  if (size != end_of_fields) gaps = true, std::fprintf(stderr, "a gap at the end of %s\\n", name);
  end_of_fields = 0;
  std::fprintf(out, "struct %s %zu\\n", name, size);
}}

#define CONSTANT(name) std::fprintf(out, "constant %s %lld\\n", #name, (long long)(name));
#define FIELD(of, name)                                                      \\
  print_field(#of, #name, Type<decltype(of::name)>::text(), offsetof(of, name), \\
              SizeOf<decltype(of::name)>::value);
#define STRUCT(name) print_struct(#name, sizeof(name));
#define FUNCTION(kind, name, status) \\
  std::fprintf(out, kind " %s %s\\n", #name, Signature<decltype(name)>::text(status).c_str());

extern "C" {{
{declared}
}}

int main(int argc, char** argv) {{
  if (argc != 2 || !(out = std::fopen(argv[1], "w"))) return 2;
  {body}
  return std::fclose(out) != 0 || gaps;
}}
"""
FUNCTION = re.compile(r"^(?!typedef)([A-Za-z][\w ]*[ *]+)(\w+)\s*\([^;{]*\)\s*[;{]", re.M)
ENTRY = re.compile(r"^SWIGEXPORT (.*?) SWIGSTDCALL (\w+\(.*\)) \{$", re.M)


def fields(body):
    for declaration in filter(str.strip, body.split(";")):
        pointer_to_function = re.search(r"\(\*(\w+)\)", declaration)
        if pointer_to_function:
            yield pointer_to_function.group(1)
        else:
            yield from (re.search(r"(\w+)\s*(\[\])?\s*$", part).group(1) for part in declaration.split(","))


def describe(path):
    """Lines of main, and the names of the structs."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    constants = re.findall(r"^#define (KVC_\w+) +\d+\s*$", text, re.M)
    for enum in re.findall(r"^enum\s*\{(.*?)\}", text, re.M | re.S):
        constants += [part.split("=")[0].strip() for part in enum.split(",")]
    lines = [f"CONSTANT({name})" for name in constants]
    structs = re.findall(r"^typedef struct (\w+) \{\n(.*?)^\} \1;", text, re.M | re.S)
    for name, body in structs:
        lines += [f"FIELD({name}, {field})" for field in fields(body)] + [f"STRUCT({name})"]
    functions = FUNCTION.findall(text)
    if "KVC_API" in text and len(functions) != len(re.findall(r"\bKVC_API\b", text)):
        raise SystemExit(f"{path}: of the functions {len(functions)} were understood")
    if len(structs) != len(re.findall(r"\bstruct \w+ *\{", text)):
        raise SystemExit(f"{path}: of the structs {len(structs)} were understood")
    for returned, name in functions:
        status = "true" if returned.split()[-1] == "kvc_status" else "false"
        lines.append(f'FUNCTION("function", {name}, {status})')
    return lines, [name for name, _ in structs] + re.findall(r"^typedef struct (\w+) +\1;", text, re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("headers", nargs="+")
    parser.add_argument("-I", action="append", default=[], dest="folders", help="where headers are")
    parser.add_argument("--entries", help="C that SWIG made")
    args = parser.parse_args()
    body, structs, declared = [], [], []
    for header in args.headers:
        paths = [os.path.join(folder, header) for folder in args.folders or ["."]]
        lines, names = describe(next(filter(os.path.exists, paths), header))
        body += lines
        structs += names
    if args.entries:
        with open(args.entries, encoding="utf-8") as file:
            entries = ENTRY.findall(file.read())
        declared = [f"{returned} {rest};" for returned, rest in entries]
        body += [f'FUNCTION("entry", {rest.split("(")[0]}, false)' for _, rest in entries]
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(PROGRAM.format(includes="\n".join(f'#include "{header}"' for header in args.headers),
                                  named="\n".join(f'NAMED({name}, "{name}")' for name in structs),
                                  declared="\n".join(declared), body="\n  ".join(body)))


if __name__ == "__main__":
    main()

# What of PCRE2 and utf8proc is compiled, and how. One list for the build and for packaging/source.
set(KVC_pcre2_SOURCES "")
foreach(part auto_possess chartables compile config context convert dfa_match error extuni find_bracket jit_compile
    maketables match match_data newline ord2utf pattern_info script_run serialize string_utils study substitute
    substring tables ucd valid_utf xclass)
  list(APPEND KVC_pcre2_SOURCES pcre2/pcre2_${part}.c)
endforeach()
set(KVC_pcre2_DEFINITIONS PCRE2_CODE_UNIT_WIDTH=8 PCRE2_STATIC SUPPORT_PCRE2_8 SUPPORT_UNICODE
  HEAP_LIMIT=20000000 LINK_SIZE=2 MATCH_LIMIT=10000000 MATCH_LIMIT_DEPTH=MATCH_LIMIT MAX_NAME_COUNT=10000
  MAX_NAME_SIZE=32 NEWLINE_DEFAULT=2 PARENS_NEST_LIMIT=250 HAVE_STDINT_H HAVE_INTTYPES_H HAVE_MEMMOVE)
if(KVC_REGEX_JIT)
  list(APPEND KVC_pcre2_DEFINITIONS SUPPORT_JIT)
endif()
set(KVC_utf8proc_SOURCES utf8proc/utf8proc.c)
set(KVC_utf8proc_DEFINITIONS UTF8PROC_STATIC)

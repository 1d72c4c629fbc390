package dev.kvc;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.URISyntaxException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.CodeSource;
import java.security.ProtectionDomain;
import java.util.Locale;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;

/**
 * Finds libkvc_jni: where -Ddev.kvc.library says, else in this JAR, else on java.library.path. The one in the JAR is
 * copied into a folder below java.io.tmpdir that only this user can read.
 */
final class NativeLibrary {
  private static final String NAME = "kvc_jni";
  private static boolean loaded;

  private NativeLibrary() {}

  /** Called before the first native call. Fails the same way each time. */
  static synchronized void load() {
    if (loaded) return;
    String from = find();
    int version;
    try {
      version = Flat.kvc_version();
    } catch (UnsatisfiedLinkError e) {
      throw new UnsatisfiedLinkError(from + " is no native library of libkvc: " + e.getMessage());
    }
    if (!fits(version, Flat.KVC_VERSION)) {
      throw new UnsatisfiedLinkError(from + " is libkvc " + text(version) + ", and these classes were made for "
          + text(Flat.KVC_VERSION) + ": use a JAR and a library of the same version");
    }
    loaded = true;
  }

  /** A later minor version has all of an earlier one; before 1.0 they do not promise that. */
  static boolean fits(int version, int wanted) {
    if (wanted < 10000) return version / 100 == wanted / 100;
    return version / 10000 == wanted / 10000 && version >= wanted;
  }

  static String text(int version) {
    return version / 10000 + "." + version / 100 % 100 + "." + version % 100;
  }

  private static String find() {
    String given = System.getProperty("dev.kvc.library");
    if (given != null) {
      String path = Paths.get(given).toAbsolutePath().toString();
      try {
        System.load(path);
        return path;
      } catch (UnsatisfiedLinkError e) {
        throw missing("\n  " + path + ", as -Ddev.kvc.library says: " + e.getMessage());
      }
    }
    StringBuilder tried = new StringBuilder();
    String resource = "/dev/kvc/native/" + platform() + "/" + System.mapLibraryName(NAME);
    String unpacked = loadResource(resource, tried);
    if (unpacked != null) return unpacked;
    try {
      System.loadLibrary(NAME);
      return System.mapLibraryName(NAME);
    } catch (UnsatisfiedLinkError e) {
      tried.append("\n  ").append(System.mapLibraryName(NAME)).append(" on java.library.path (")
          .append(System.getProperty("java.library.path")).append("): ").append(e.getMessage());
      throw missing(tried.toString());
    }
  }

  /** The place of the copy that was loaded, or null. */
  private static String loadResource(String resource, StringBuilder tried) {
    String doing = "not there";
    File jar = ownJar();
    try (ZipFile zip = jar == null ? null : new ZipFile(jar); InputStream in = open(zip, resource)) {
      if (in != null) {
        doing = "cannot be copied below " + System.getProperty("java.io.tmpdir");
        Path folder = ownFolder();
        Path copy = folder.resolve(System.mapLibraryName(NAME));
        try {
          write(in, copy.toFile());
          doing = "cannot be loaded from " + copy;
          System.load(copy.toString());
          return resource + " of the JAR";
        } finally {
          remove(copy);
          remove(folder);
        }
      }
      tried.append("\n  ").append(resource).append(" in the JAR: ").append(doing);
    } catch (IOException | UnsatisfiedLinkError e) {
      tried.append("\n  ").append(resource).append(" in the JAR: ").append(doing).append(": ").append(e.getMessage());
    }
    return null;
  }

  /**
   * The JAR that these classes came from, where it is a file: read as such, as the VM has it open already. The way of
   * resources sets up URLs and their connections, and Files.copy channels: more than all else that a first call does.
   */
  private static File ownJar() {
    try {
      ProtectionDomain domain = NativeLibrary.class.getProtectionDomain();  // Android has none
      CodeSource source = domain == null ? null : domain.getCodeSource();
      if (source == null || source.getLocation() == null || !"file".equals(source.getLocation().getProtocol())) {
        return null;
      }
      File file = new File(source.getLocation().toURI());
      return file.isFile() ? file : null;
    } catch (SecurityException | URISyntaxException | IllegalArgumentException e) {
      return null;
    }
  }

  /** The content of a resource, or null. */
  private static InputStream open(ZipFile zip, String resource) throws IOException {
    if (zip == null) return NativeLibrary.class.getResourceAsStream(resource);
    ZipEntry entry = zip.getEntry(resource.substring(1));
    return entry == null ? null : zip.getInputStream(entry);
  }

  private static void write(InputStream in, File file) throws IOException {
    byte[] part = new byte[1 << 16];
    try (OutputStream out = new FileOutputStream(file)) {
      for (int n = in.read(part); n >= 0; n = in.read(part)) out.write(part, 0, n);
    }
  }

  /**
   * A new folder that only this user can enter. Not Files.createTempDirectory, which sets up cryptography for the name:
   * most of the time that a first call would take. A folder that is there already is left alone.
   */
  private static Path ownFolder() throws IOException {
    while (true) {
      Path folder = Paths.get(System.getProperty("java.io.tmpdir"), "libkvc-" + Long.toHexString(System.nanoTime()));
      try {
        if (folder.getFileSystem().supportedFileAttributeViews().contains("posix")) {
          return Files.createDirectory(folder,
              PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
        }
        return Files.createDirectory(folder);
      } catch (FileAlreadyExistsException e) {
        continue;
      }
    }
  }

  /** Gone at once where a file in use may be unlinked, else at the end. */
  private static void remove(Path path) {
    try {
      Files.delete(path);
    } catch (IOException e) {
      path.toFile().deleteOnExit();
    }
  }

  /** linux-x86_64, linux-aarch64, macos-aarch64, windows-x86_64 ... */
  static String platform() {
    String os = System.getProperty("os.name", "").toLowerCase(Locale.ROOT);
    String arch = System.getProperty("os.arch", "").toLowerCase(Locale.ROOT);
    if (os.startsWith("mac")) os = "macos";
    if (os.startsWith("windows")) os = "windows";
    if (arch.equals("amd64") || arch.equals("x86-64") || arch.equals("x64")) arch = "x86_64";
    if (arch.equals("arm64")) arch = "aarch64";
    return os + "-" + arch;
  }

  private static UnsatisfiedLinkError missing(String tried) {
    return new UnsatisfiedLinkError("the native library of libkvc was not found for " + platform()
        + ". Looked for:" + tried + "\nPut it there, or name it with -Ddev.kvc.library=PATH");
  }
}

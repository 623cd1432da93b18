/* Uses the AWS SDK for Java with its defaults: Drive ENDPOINT BUCKET. The program that runs it has the key. */

import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import software.amazon.awssdk.core.ResponseInputStream;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.S3Configuration;
import software.amazon.awssdk.services.s3.model.*;
import software.amazon.awssdk.services.s3.presigner.S3Presigner;

public class Drive {
    public static void main(String[] arguments) throws Exception {
        URI endpoint = URI.create(arguments[0]);
        String bucket = arguments[1];
        S3Configuration paths = S3Configuration.builder().pathStyleAccessEnabled(true).build();
        try (S3Client s3 = S3Client.builder().endpointOverride(endpoint).region(Region.of("eu-north1"))
                .serviceConfiguration(paths).httpClientBuilder(UrlConnectionHttpClient.builder()).build();
             S3Presigner presigner = S3Presigner.builder().endpointOverride(endpoint)
                .region(Region.of("eu-north1")).serviceConfiguration(paths).build()) {
            s3.putObject(b -> b.bucket(bucket).key("a b/ä+").metadata(Map.of("colour", "red")),
                RequestBody.fromString("hello"));
            try (ResponseInputStream<GetObjectResponse> found = s3.getObject(b -> b.bucket(bucket).key("a b/ä+"))) {
                expect("hello", new String(found.readAllBytes()));
                expect("red", found.response().metadata().get("colour"));
            }
            parts(s3, bucket);
            List<String> keys = new ArrayList<>();
            s3.listObjectsV2Paginator(b -> b.bucket(bucket).maxKeys(1)).contents().forEach(o -> keys.add(o.key()));
            expect(List.of("a b/ä+", "parts"), keys);
            s3.copyObject(b -> b.sourceBucket(bucket).sourceKey("parts").destinationBucket(bucket).destinationKey("copy"));
            try {
                s3.headObject(b -> b.bucket(bucket).key("none"));
                throw new AssertionError("It is not there.");
            } catch (NoSuchKeyException expected) {
                expect(404, expected.statusCode());
            }
            link(presigner, s3, bucket);
            s3.deleteObjects(b -> b.bucket(bucket).delete(d -> d.objects(
                ObjectIdentifier.builder().key("a b/ä+").build(), ObjectIdentifier.builder().key("copy").build())));
            expect(2, s3.listObjectsV2(b -> b.bucket(bucket)).keyCount());
        }
    }

    private static void parts(S3Client s3, String bucket) throws Exception {
        String upload = s3.createMultipartUpload(b -> b.bucket(bucket).key("parts")).uploadId();
        List<CompletedPart> parts = new ArrayList<>();
        byte[] body = new byte[5 * 1024 * 1024];
        for (int each = 1; each <= 2; each++) {
            int number = each;
            Arrays.fill(body, (byte) number);
            UploadPartResponse done = s3.uploadPart(
                b -> b.bucket(bucket).key("parts").uploadId(upload).partNumber(number), RequestBody.fromBytes(body));
            parts.add(CompletedPart.builder().partNumber(number).eTag(done.eTag())
                .checksumCRC32(done.checksumCRC32()).build());
        }
        s3.completeMultipartUpload(b -> b.bucket(bucket).key("parts").uploadId(upload)
            .multipartUpload(m -> m.parts(parts)));
        try (InputStream found = s3.getObject(b -> b.bucket(bucket).key("parts").range("bytes=5242879-5242880"))) {
            expect("[1, 2]", Arrays.toString(found.readAllBytes()));
        }
    }

    private static void link(S3Presigner presigner, S3Client s3, String bucket) throws Exception {
        var signed = presigner.presignPutObject(p -> p.signatureDuration(Duration.ofMinutes(5)).putObjectRequest(
            b -> b.bucket(bucket).key("linked").metadata(Map.of("by", "link"))));
        HttpURLConnection connection = (HttpURLConnection) signed.url().openConnection();
        connection.setRequestMethod("PUT");
        connection.setDoOutput(true);
        signed.signedHeaders().forEach((name, values) -> {
            if (!name.equalsIgnoreCase("host")) {
                connection.setRequestProperty(name, values.get(0));
            }
        });
        connection.getOutputStream().write("from a link".getBytes());
        expect(200, connection.getResponseCode());
        HeadObjectResponse found = s3.headObject(b -> b.bucket(bucket).key("linked"));
        expect("link", found.metadata().get("by"));
        expect(11L, found.contentLength());
    }

    private static void expect(Object wanted, Object found) {
        if (!wanted.equals(found)) {
            throw new AssertionError("wanted " + wanted + ", found " + found);
        }
    }
}
